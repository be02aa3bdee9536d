"""Maps on CUDA: one binary with four paths, which the binding chooses by strides (csrc/elementwise/map.h)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import CudaKernel
from opfacade.backends.cuda.programs import source
from opfacade.backends.cuda.programs.map_engine import MapForm
from opfacade.core.candidate import Reason
from opfacade.core.guarantee import PrecisionGuarantee
from opfacade.core.target import Target
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs.guarantees import error_model

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

_EVIDENCE = (
    "tests/families/elementwise/test_map_kernel.py::test_it_keeps_its_bound_on_every_layout",
    "tests/families/elementwise/test_map_kernel.py::test_bits_do_not_depend_on_the_path",
)


def _form(descriptor: MapDescriptor) -> MapForm:
    return MapForm(
        tuple((given.name, given.dtype) for given in descriptor.inputs),
        tuple((made.name, made.dtype) for made in descriptor.outputs),
        tuple(descriptor.program().values()),
        descriptor.scalars,
        tuple(given.name for given in descriptor.inputs if given.over is not None),
    )


def _constants(descriptor: MapDescriptor) -> dict[str, Any]:
    """Constants that the templates print."""
    names = [given.name for given in descriptor.inputs]
    found = _form(descriptor).constants() | {
        "over": tuple("all" if given.over is None else given.over for given in descriptor.inputs),
        "own": tuple(given.shape is not None for given in descriptor.inputs),
        "replaced": tuple(_index(names, descriptor.overwritten.get(made.name)) for made in descriptor.outputs),
    }
    return found | ({"num_valid": True} if descriptor.num_valid else {})


def _index(names: list[str], name: str | None) -> int:
    return -1 if name is None else names.index(name)


def _facts(descriptor: MapDescriptor) -> dict[str, bool | int | str]:
    """Fields of the SKU besides dtypes."""
    told: dict[str, bool | int | str] = {"expr": descriptor.key, "math": _form(descriptor).math}
    told |= {"in_place": True} if descriptor.in_place else {}
    return told | ({"num_valid": True} if descriptor.num_valid else {})


def _refusals(descriptor: MapDescriptor, target: Target) -> Iterator[Reason]:
    form = _form(descriptor)
    yield from source.fp8_reasons(target, form.dtypes, form.values)


def _guarantee(descriptor: MapDescriptor, target: Target) -> PrecisionGuarantee:
    """An element depends only on inputs at its position, and so on the batch only if the program uses positions."""
    values = list(descriptor.program().values())
    return PrecisionGuarantee(
        math_precision="f64" if any(node.type == "f64" for node in values) else "f32",
        accumulator="none",
        deterministic=True,
        bit_stable_on_same_hardware=True,
        batch_invariant="none" if source.is_placed(values) else "composition",
        error_model=error_model(values, _form(descriptor).math, "map", target.sm_version),
        evidence=_EVIDENCE,
    )


class _Map(CudaKernel[MapDescriptor]):
    """The template prints the whole program; the SKU contains only its digest."""

    def facts(self, descriptor: MapDescriptor) -> support.SpecPairs:
        return support.pairs(**_facts(descriptor))

    def jit_spec(self, descriptor: MapDescriptor, target: Target) -> JitSpec:
        constants = _constants(descriptor) | {"dependent": target.sm_version >= 90}
        return support.spec_of("elementwise/map", support.pairs(**constants), target)


_MAP = _Map(
    descriptor=MapDescriptor,
    template="elementwise/map",
    impl="loops",
    accepts=_refusals,
    size_free=True,
    constants=_facts,
    dtypes=lambda descriptor: _form(descriptor).sku_dtypes,
    guarantee=_guarantee,
    scalars=source.numbers,
)

CANDIDATES = (_MAP.candidate,)
