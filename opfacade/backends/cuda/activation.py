"""Gated activations on the engine of maps; gates and ups that alternate are read as pairs."""

from __future__ import annotations

from typing import Any

from opfacade.backends.cuda import program_source as source
from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import CudaKernel
from opfacade.backends.cuda.map_engine import MapForm, engine_constants, paired
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.guarantee import PrecisionGuarantee
from opfacade.core.target import Target
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.programs.guarantees import error_model

_EVIDENCE = (
    "tests/families/activation/test_activation_kernel.py::test_it_keeps_its_bound_on_every_layout",
    "tests/families/activation/test_activation_kernel.py::test_bits_do_not_depend_on_the_layout_or_the_batch",
)


def _form(descriptor: GatedActivationDescriptor) -> MapForm:
    inputs = tuple((name, descriptor.dtype) for name in descriptor.parts)
    values = tuple(descriptor.program().values())
    return MapForm(inputs, (("out", descriptor.dtype),), values, descriptor.scalars)


def _facts(descriptor: GatedActivationDescriptor) -> dict[str, bool | int | str]:
    told: dict[str, bool | int | str] = {"expr": descriptor.key, "math": _form(descriptor).math}
    told["activation"] = "expression" if descriptor.expression is not None else descriptor.activation
    told["row"] = "_".join(descriptor.parts) + ("_pairs" if descriptor.interleaved else "")
    return told | {name: True for name in ("in_place", "num_valid") if getattr(descriptor, name)}


def _constants(descriptor: GatedActivationDescriptor) -> dict[str, Any]:
    form, size = _form(descriptor), ITEMSIZE[descriptor.dtype]
    more = {"in_place": descriptor.in_place, "num_valid": descriptor.num_valid, "row_parts": len(descriptor.parts)}
    more["pairs"] = descriptor.interleaved
    if not descriptor.interleaved:
        return form.constants() | more | {"own": (False,) * len(descriptor.parts)}
    found = engine_constants(form, [2 * size])
    nodes = paired(found["nodes"], {0: (0, "first"), 1: (0, "second")})
    return found | more | {"nodes": nodes, "inputs": (f"pair_{descriptor.dtype}",), "own": (False,)}


def _guarantee(descriptor: GatedActivationDescriptor) -> PrecisionGuarantee:
    return PrecisionGuarantee(
        math_precision="f32",
        accumulator="none",
        deterministic=True,
        bit_stable_on_same_hardware=True,
        batch_invariant="composition",
        error_model=error_model(descriptor.program().values(), _form(descriptor).math, "map"),
        evidence=_EVIDENCE,
    )


class _Gated(CudaKernel):
    """The program is printed whole; the SKU names it by its digest."""

    def facts(self, descriptor: Any) -> support.SpecPairs:
        return support.pairs(**_facts(descriptor))

    def jit_spec(self, descriptor: Any, target: Target) -> Any:
        return support.spec_of("activation/gated_activation", support.pairs(**_constants(descriptor)), target)


_GATED = _Gated(
    descriptor=GatedActivationDescriptor,
    template="activation/gated_activation",
    impl="loops",
    constants=_facts,
    dtypes={"x": "dtype"},
    guarantee=_guarantee,
    scalars=source.numbers,
)

CANDIDATES = (_GATED.candidate,)
