"""Gated activations on the engine of maps; alternating gates and ups are read as pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import CudaKernel
from opfacade.backends.cuda.folds.gated import gated_fold_kernel, gated_scaled_kernel
from opfacade.backends.cuda.programs import source
from opfacade.backends.cuda.programs.map_engine import MapForm, engine_constants, paired
from opfacade.core.candidate import Reason
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.guarantee import PrecisionGuarantee
from opfacade.core.target import Target
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.programs.guarantees import error_model

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

_EVIDENCE = (
    "tests/families/activation/test_activation_kernel.py::test_it_keeps_its_bound_on_every_layout",
    "tests/families/activation/test_activation_kernel.py::test_bits_do_not_depend_on_the_layout_or_the_batch",
)


def _form(descriptor: GatedActivationDescriptor) -> MapForm:
    inputs = tuple((name, str(descriptor.dtype)) for name in descriptor.parts)
    inputs += (("scale", _scale_dtype(descriptor)),) if descriptor.has_scale else ()
    values = tuple(descriptor.program().values())
    return MapForm(inputs, (("out", descriptor.out_dtype),), values, descriptor.scalars, ("scale",))


def _scale_dtype(descriptor: GatedActivationDescriptor) -> str:
    return "f32" if descriptor.quant is None else descriptor.quant.scale_dtype


def _facts(descriptor: GatedActivationDescriptor) -> dict[str, bool | int | str]:
    told: dict[str, bool | int | str] = {"expr": descriptor.key, "math": _form(descriptor).math}
    told["activation"] = "expression" if descriptor.expression is not None else descriptor.activation
    told["row"] = "_".join(descriptor.parts) + ("_pairs" if descriptor.interleaved else "")
    return told | {name: True for name in ("in_place", "num_valid") if getattr(descriptor, name)}


def _constants(descriptor: GatedActivationDescriptor) -> dict[str, Any]:
    form, size = _form(descriptor), ITEMSIZE[descriptor.dtype]
    more = {"in_place": descriptor.in_place, "num_valid": descriptor.num_valid, "row_parts": len(descriptor.parts)}
    more["pairs"] = descriptor.interleaved
    scale = (_scale_dtype(descriptor),) if descriptor.has_scale else ()
    more["has_scale"] = descriptor.has_scale
    if not descriptor.interleaved:
        return form.constants() | more | {"own": (False,) * len(form.inputs)}
    found = engine_constants(form, [2 * size, *(ITEMSIZE[dtype] for dtype in scale)])
    nodes = paired(found["nodes"], {0: (0, "first"), 1: (0, "second"), 2: (1,)})
    inputs = (f"pair_{descriptor.dtype}", *scale)
    return (
        found
        | more
        | {"nodes": nodes, "inputs": inputs, "own": (False,) * len(inputs), "shared": (False,) + (True,) * len(scale)}
    )


def _guarantee(descriptor: GatedActivationDescriptor, target: Target) -> PrecisionGuarantee:
    return PrecisionGuarantee(
        math_precision="f32",
        accumulator="none",
        deterministic=True,
        bit_stable_on_same_hardware=True,
        batch_invariant="composition",
        error_model=error_model(descriptor.program().values(), _form(descriptor).math, "map", target.sm_version),
        evidence=_EVIDENCE,
    )


def _dtypes(descriptor: GatedActivationDescriptor) -> tuple[tuple[str, str], ...]:
    out = (("out", descriptor.out_dtype),) if descriptor.quant is not None else ()
    return (*out, ("x", descriptor.dtype))


def _lacks(descriptor: GatedActivationDescriptor, target: Target) -> Iterator[Reason]:
    if descriptor.quant is not None and descriptor.makes_scales:
        yield Reason("OPF-S003", "quant.scale", descriptor.quant.scale, "none, static")
    if any(support.fp8_reasons(target, "f8")):  # creates the program only then
        yield from source.fp8_reasons(target, [descriptor.out_dtype], descriptor.program().values())


class _Gated(CudaKernel[GatedActivationDescriptor]):
    """The template prints the whole program; the SKU contains only its digest."""

    def facts(self, descriptor: GatedActivationDescriptor) -> support.SpecPairs:
        return support.pairs(**_facts(descriptor))

    def jit_spec(self, descriptor: GatedActivationDescriptor, target: Target) -> JitSpec:
        constants = _constants(descriptor) | {"dependent": target.sm_version >= 90}
        return support.spec_of("activation/gated_activation", support.pairs(**constants), target)


_GATED = _Gated(
    descriptor=GatedActivationDescriptor,
    template="activation/gated_activation",
    impl="loops",
    constants=_facts,
    accepts=_lacks,
    dtypes=_dtypes,
    guarantee=_guarantee,
    scalars=source.numbers,
    size_free=True,
)

CANDIDATES = (
    _GATED.candidate,
    gated_fold_kernel(GatedActivationDescriptor),
    gated_scaled_kernel(GatedActivationDescriptor),
)
