"""The engine of maps: the template constants of a program, for each op that runs on the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opfacade.backends.cuda.programs import source
from opfacade.core.dtypes import ITEMSIZE
from opfacade.programs.expression import Node, ordered
from opfacade.programs.fields import Number
from opfacade.programs.guarantees import Math

_CODE = 768  # approximate maximum number of instructions in the unrolled loops
_IN_FLIGHT = 128  # bytes that a thread loads before it uses the first one
_CALLS = 16  # an element with this many instructions calls a function, which leaves fewer registers
_FEW = 20  # maximum instructions per element for which 64 registers suffice for several interleaved elements
_APART = (8, 4)  # elements per thread, strided by the size of a CTA
_LOADS = 24  # loads of a thread before it uses the first one
_TILE_BYTES = 48 * 1024  # bytes of the tiles of all inputs, most of which are not transposed
_TILE_OPERANDS = 8  # with more, the tile code takes too long to compile


@dataclass(frozen=True, slots=True)
class MapForm:
    """The map that a kernel computes. inputs, outputs: (name, dtype). values: the programs of the outputs. partial: inputs that
    lack axes."""

    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    values: tuple[Node, ...]
    scalars: tuple[Number, ...] = ()
    partial: tuple[str, ...] = ()

    @property
    def dtypes(self) -> list[str]:
        return [dtype for _, dtype in (*self.inputs, *self.outputs)]

    @property
    def math(self) -> Math:
        return source.math_of([(dtype, value) for (_, dtype), value in zip(self.outputs, self.values, strict=True)])

    @property
    def sku_dtypes(self) -> tuple[tuple[str, str], ...]:
        pairs = [(f"in.{name}", dtype) for name, dtype in self.inputs]
        return tuple(sorted(pairs + [(f"out.{name}", dtype) for name, dtype in self.outputs]))

    def constants(self) -> dict[str, Any]:
        """Constants of `csrc/elementwise/map.cu.jinja`; the SKU contains the digest of the program instead."""
        return engine_constants(self, [ITEMSIZE[dtype] for _, dtype in self.inputs])


def engine_constants(form: MapForm, input_sizes: Sequence[int]) -> dict[str, Any]:
    """input_sizes: bytes per element of each input of the kernel; an element may hold several elements of the program."""
    sizes = [*input_sizes, *(ITEMSIZE[dtype] for _, dtype in form.outputs)]
    placed = source.is_placed(form.values)
    weight = source.weight(form.values, form.math)
    vector, unroll = _vector(sizes, len(input_sizes), weight)
    side = 0 if placed or len(sizes) > _TILE_OPERANDS else _tile(input_sizes)
    nodes = ordered(form.values)
    names = [name for name, _ in form.inputs]
    return {
        "nodes": source.statements(form.values, names, [number.name for number in form.scalars], form.math),
        "values": tuple(nodes.index(value) for value in form.values),
        "inputs": tuple(dtype for _, dtype in form.inputs),
        "outputs": tuple(dtype for _, dtype in form.outputs),
        "scalars": tuple(number.type for number in form.scalars),
        "sizes": tuple(sizes),
        "vector": vector, "unroll": unroll, "tile": side, "placed": placed, "beside": _beside(vector, unroll),
        "apart": _apart(len(input_sizes), weight),
        "ctas": _ctas(len(sizes), unroll, weight, source.calls_functions(form.values, form.math)),
        "shared": tuple(name in form.partial for name in names),
    }  # fmt: skip


def _vector(sizes: Sequence[int], inputs: int, weight: int) -> tuple[int, int]:
    """Elements per vector and vectors per thread: 16 bytes of the narrowest operand, if the code stays small; it contains every
    vector plus one scalar loop."""
    vector = min(16 // min(sizes), 16 if max(sizes) <= 2 else 8)
    while vector > 1 and vector * weight > _CODE and vector * min(sizes) > 4:
        vector //= 2
    loaded = vector * sum(sizes[:inputs])
    most = _IN_FLIGHT if weight < _CALLS else _IN_FLIGHT // 2
    for unroll in (4, 2):
        if unroll * loaded <= most and vector * (unroll + 1) * weight <= _CODE:
            return vector, unroll
    return vector, 1


def _apart(inputs: int, weight: int) -> int:
    """Elements per thread if vectors are not aligned, limited by registers and code size."""
    return next((each for each in _APART if each * inputs <= _LOADS and (each + 1) * weight <= _CODE), 1)


def _beside(vector: int, unroll: int) -> int:
    """Number of interleaved elements: at least two, because one instruction packs two; few in long code."""
    return min(vector, 4 if unroll > 1 else 2)


def _ctas(operands: int, unroll: int, weight: int, calls: bool) -> int:
    """CTAs per SM for which ptxas allocates registers. By default it uses 32, too few for interleaved elements. Functions of
    the device library need more; how many depends on the compiler."""
    if unroll == 1:
        return 1
    light = 4 if operands <= 3 and weight <= _FEW else 3 if operands <= 5 else 2
    return min(light, 2) if calls else light


def _tile(sizes: Sequence[int]) -> int:
    """The side of a tile; 0 if tiles of all inputs do not fit in shared memory."""
    return next((side for side in (64, 32) if sizes and sum(sizes) * side * side <= _TILE_BYTES), 0)


def paired(nodes: Sequence[source.Statement], halves: Mapping[int, tuple[int | str, ...]]) -> tuple[source.Statement, ...]:
    """Statements whose inputs are halves of pairs: input -> (operand of the kernel, "first" or "second" of a pair)."""
    return tuple((*node[:2], *halves[node[2]]) if node[0] == "input" else node for node in nodes)
