"""Parts of a tensor, and differences and products of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import constant, coord
from opfacade.recipes._draft import Draft
from opfacade.recipes._pointwise import common
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, axis_of, broadcast, refuse

if TYPE_CHECKING:
    from opfacade.recipes._tensors import Dims, Scalar


@recipe("narrow_copy narrow", "a copy")
def narrow_copy(input: Shaped, dim: int, start: int, length: int) -> MapDescriptor:
    axis = axis_of("dim", dim, input.rank)
    size = input.shape[axis]
    if not isinstance(start, int):
        refuse("start", "a number", start)
    first = start + size if start < 0 else start
    if not 0 <= first <= first + length <= size:
        refuse("length", f"a range within the {size} elements of the axis", (start, length))
    return sliced(input, axis, first, length, 1)


def sliced(input: Shaped, axis: int, start: int, length: int, step: int) -> MapDescriptor:
    draft = Draft([length if i == axis else size for i, size in enumerate(input.shape)])
    places = draft.here()
    along = places[axis] * draft.number("step", step, "i64") if step != 1 else places[axis]
    places[axis] = along + draft.number("start", start, "i64")
    return draft.map(draft.source("input", input).at(places), dtype=input.dtype)


@recipe("slice", "a copy")
def slice_copy(
    input: Shaped, dim: int = 0, start: Scalar | None = None, end: Scalar | None = None, step: int = 1
) -> MapDescriptor:
    axis = axis_of("dim", dim, input.rank)
    first, last, by = slice(start, end, step).indices(input.shape[axis])
    return sliced(input, axis, first, len(range(first, last, by)), by)


@recipe("select", "a copy")
def select_copy(input: Shaped, dim: int, index: int) -> MapDescriptor:
    axis = axis_of("dim", dim, input.rank)
    size = input.shape[axis]
    if not -size <= index < size:
        refuse("index", f"an index of the axis, {-size} .. {size - 1}", index)
    draft = Draft([n for i, n in enumerate(input.shape) if i != axis])
    places = draft.here()
    places.insert(axis, draft.number("index", index % size, "i64"))
    return draft.map(draft.source("input", input).at(places), dtype=input.dtype)


@recipe("unfold_copy ~unfold", "a copy")
def unfold_copy(input: Shaped, dimension: int, size: int, step: int) -> MapDescriptor:
    """Windows along an axis, as a new last axis."""
    axis = axis_of("dimension", dimension, input.rank)
    along = input.shape[axis] if input.rank else 1
    if not 0 <= size <= along or step < 1:
        refuse("size", f"at most the {along} elements of the axis, and a step of at least 1", (size, step))
    kept = [(along - size) // step + 1 if i == axis else n for i, n in enumerate(input.shape)]
    draft = Draft([*kept, size])
    places = draft.here(range(max(input.rank, 1)))
    if input.rank:
        places[axis] = places[axis] * draft.number("step", step, "i64") + coord(input.rank)
    return draft.map(draft.source("input", input).at(places), dtype=input.dtype)


@recipe("unbind_copy", "at most 4 results: out0, out1 and so on")
def unbind_copy(input: Shaped, dim: int = 0) -> MapDescriptor:
    axis = axis_of("dim", dim, input.rank)
    count = input.shape[axis] if input.rank else 0
    if not 1 <= count <= 4:
        refuse("input", f"1 to 4 elements along axis {axis}", input.shape)
    draft = Draft([n for i, n in enumerate(input.shape) if i != axis])
    source, values = draft.source("input", input), []
    for i in range(count):
        places = draft.here()
        places.insert(axis, constant(i, "i64"))
        values.append(source.at(places))
    return draft.map(*values, dtype=input.dtype)


@recipe("diff", "n=1, without prepend and append")
def diff(input: Shaped, n: int = 1, dim: int = -1, prepend: object = None, append: object = None) -> MapDescriptor:
    axis = axis_of("dim", dim, input.rank)
    if n != 1 or prepend is not None or append is not None or not input.rank:
        refuse("n", "1, without prepend and append, and an input with an axis", (n, prepend, append, input.shape))
    draft = Draft([max(size - 1, 0) if i == axis else size for i, size in enumerate(input.shape)])
    source, places = draft.source("input", input), draft.here()
    ahead = [place + 1 if i == axis else place for i, place in enumerate(places)]
    a, b = source.at(ahead), source.at(places)
    return draft.map(w.xor(a, b) if a.type == "bool" else a - b, dtype=input.dtype)


@recipe("linalg.cross")
def cross(input: Shaped, other: Shaped, dim: int = -1) -> MapDescriptor:
    """The cross product of 3-vectors along an axis."""
    common({"input": input, "other": other})
    shape = broadcast([input.shape, other.shape])
    axis = axis_of("dim", dim, len(shape))
    if not shape or shape[axis] != 3:
        refuse("dim", "an axis with 3 elements", shape)
    draft = Draft(shape)
    parts = []
    for name, one in (("input", input), ("other", other)):
        source, first = draft.source(name, one), len(shape) - one.rank
        for by in (1, 2):
            places = [coord(i) if size != 1 else constant(0, "i64") for i, size in enumerate(one.shape, first)]
            places[axis - first] = w.mod(coord(axis) + by, 3)
            parts.append(source.at(places))
    return draft.map(parts[0] * parts[3] - parts[1] * parts[2], dtype=input.dtype)


@recipe("cross", "without dim, the first axis with 3 elements")
def first_cross(input: Shaped, other: Shaped, dim: Dims = None) -> MapDescriptor:
    shape = broadcast([input.shape, other.shape])
    found: MapDescriptor = cross.make(
        input, other, shape.index(3) if dim is None and 3 in shape else -1 if dim is None else dim
    )
    return found
