"""Maps on CUDA: one binary with four paths, which the binding chooses by strides (csrc/elementwise/map.h)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from opfacade.backends.cuda import program_source as source
from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import CudaKernel
from opfacade.core.candidate import Reason
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.guarantee import PrecisionGuarantee
from opfacade.core.target import Target
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs.expression import ordered
from opfacade.programs.guarantees import Math, error_model

_CODE = 768  # instructions of the unrolled loop, about
_FEW_OPERANDS = 4  # beyond, one vector of each is enough in flight
_TILE_BYTES = 24 * 1024  # so that several blocks share an SM
_EVIDENCE = (
    "tests/families/elementwise/test_map_kernel.py::test_it_keeps_its_bound_on_every_layout",
    "tests/families/elementwise/test_map_kernel.py::test_bits_do_not_depend_on_the_path",
)


def _dtypes(descriptor: MapDescriptor) -> Sequence[str]:
    return [given.dtype for given in descriptor.inputs] + [made.dtype for made in descriptor.outputs]


def _math(descriptor: MapDescriptor) -> Math:
    return source.math_of([(output.dtype, output.value) for output in descriptor.outputs])


def _vector(descriptor: MapDescriptor, weight: int) -> tuple[int, int]:
    """Elements of a vector and vectors of a thread: 16 bytes of the narrowest operand, as long as the code stays small."""
    sizes = [ITEMSIZE[dtype] for dtype in _dtypes(descriptor)]
    vector, unroll = min(16 // min(sizes), 16 if max(sizes) <= 2 else 8), 2 if len(sizes) <= _FEW_OPERANDS else 1
    while vector * unroll * weight > _CODE and unroll > 1:
        unroll -= 1
    while vector * weight > _CODE and vector * min(sizes) > 4:
        vector //= 2
    return vector, unroll


def _tile(descriptor: MapDescriptor) -> tuple[int, tuple[int, ...], int]:
    """The side of a tile, where each input lies in shared memory, and the bytes of all; 0 where they have no room."""
    sizes = [ITEMSIZE[one.dtype] for one in descriptor.inputs]
    for side in (64, 32):
        each = [size * side * (side + 1) + -size * side * (side + 1) % 16 for size in sizes]
        if sizes and sum(each) <= (_TILE_BYTES if side == 64 else 48 * 1024):
            return side, tuple(sum(each[:i]) for i in range(len(each))), sum(each)
    return 0, (0,) * len(sizes), 0


def _constants(descriptor: MapDescriptor) -> dict[str, Any]:
    """Constants that the templates print; the SKU has the program by its digest instead."""
    values, math = list(descriptor.program().values()), _math(descriptor)
    nodes = ordered(values)
    placed = source.is_placed(values)
    vector, unroll = _vector(descriptor, source.weight(values))
    side, tile_at, tile_bytes = (0, (0,) * len(descriptor.inputs), 0) if placed else _tile(descriptor)
    names = [given.name for given in descriptor.inputs]
    found = {
        "nodes": source.statements(values, names, [number.name for number in descriptor.scalars], math),
        "values": tuple(nodes.index(value) for value in values),
        "inputs": tuple(given.dtype for given in descriptor.inputs),
        "outputs": tuple(made.dtype for made in descriptor.outputs),
        "scalars": tuple(number.type for number in descriptor.scalars),
        "over": tuple("all" if given.over is None else given.over for given in descriptor.inputs),
        "own": tuple(given.shape is not None for given in descriptor.inputs),
        "replaced": tuple(_index(names, descriptor.overwritten.get(made.name)) for made in descriptor.outputs),
        "sizes": tuple(ITEMSIZE[dtype] for dtype in _dtypes(descriptor)),
        "vector": vector, "unroll": unroll, "tile": side, "tile_at": tile_at, "tile_bytes": tile_bytes, "placed": placed,
    }  # fmt: skip
    return found | ({"num_valid": True} if descriptor.num_valid else {})


def _index(names: list[str], name: str | None) -> int:
    return -1 if name is None else names.index(name)


def _facts(descriptor: MapDescriptor) -> dict[str, bool | int | str]:
    """Fields of the SKU besides dtypes."""
    told: dict[str, bool | int | str] = {"expr": descriptor.key, "math": _math(descriptor)}
    told |= {"in_place": True} if descriptor.in_place else {}
    return told | ({"num_valid": True} if descriptor.num_valid else {})


def _sku_dtypes(descriptor: MapDescriptor) -> tuple[tuple[str, str], ...]:
    pairs = [(f"in.{given.name}", given.dtype) for given in descriptor.inputs]
    return tuple(sorted(pairs + [(f"out.{made.name}", made.dtype) for made in descriptor.outputs]))


def _scalars(descriptor: MapDescriptor) -> tuple[float, ...]:
    """Integers as signed 64-bit numbers."""
    found = []
    for number in descriptor.scalars:
        whole = number.type not in ("f32", "f64")
        value = int(number.value) if whole else float(number.value)
        found.append(value - 2**64 if whole and value >= 2**63 else value)
    return tuple(found)


def _refusals(descriptor: MapDescriptor, target: Target) -> Iterator[Reason]:
    if any(dtype in ("f8_e4m3", "f8_e5m2") for dtype in _dtypes(descriptor)):
        yield from support.fp8_reasons(target, "f8")


def _guarantee(descriptor: MapDescriptor) -> PrecisionGuarantee:
    """An element depends on inputs at its place alone; only a program that uses places depends on the batch."""
    values = list(descriptor.program().values())
    return PrecisionGuarantee(
        math_precision="f64" if any(node.type == "f64" for node in values) else "f32",
        accumulator="none",
        deterministic=True,
        bit_stable_on_same_hardware=True,
        batch_invariant="none" if source.is_placed(values) else "composition",
        error_model=error_model(values, _math(descriptor), "map"),
        evidence=_EVIDENCE,
    )


class _Map(CudaKernel):
    """The program is printed whole; the SKU names it by its digest."""

    def facts(self, descriptor: Any) -> support.SpecPairs:
        return support.pairs(**_facts(descriptor))

    def jit_spec(self, descriptor: Any, target: Target) -> Any:
        return support.spec_of("elementwise/map", support.pairs(**_constants(descriptor)), target)


_MAP = _Map(
    descriptor=MapDescriptor,
    template="elementwise/map",
    impl="loops",
    accepts=_refusals,
    constants=_facts,
    dtypes=_sku_dtypes,
    guarantee=_guarantee,
    scalars=_scalars,
)

CANDIDATES = (_MAP.candidate,)
