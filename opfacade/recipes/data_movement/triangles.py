"""Triangles and diagonals, where an element depends on the difference of its row and column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, coord
from opfacade.programs.types import storable
from opfacade.recipes._draft import Draft, one, zero
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shape, Shaped, axis_of, dtype_of, refuse

if TYPE_CHECKING:
    from opfacade.recipes._tensors import AnyDType, Scalar


def _triangle(input: Shaped, diagonal: int, upper: bool) -> MapDescriptor:
    if input.rank < 2:
        refuse("input", "at least 2 axes", input.shape)
    draft = Draft(input.shape)
    ahead = coord(input.rank - 1) - coord(input.rank - 2)
    number = draft.number("diagonal", diagonal, "i64")
    kept = ahead >= number if upper else ahead <= number
    return draft.map(w.select(kept, draft.element("input", input), zero(input.type)), dtype=input.dtype)


@recipe("tril")
def tril(input: Shaped, diagonal: int = 0) -> MapDescriptor:
    return _triangle(input, diagonal, False)


@recipe("triu")
def triu(input: Shaped, diagonal: int = 0) -> MapDescriptor:
    return _triangle(input, diagonal, True)


@recipe("eye")
def eye(n: int, m: Any = None, dtype: AnyDType | None = "f32") -> MapDescriptor:
    draft, wanted = Draft((n, n if m is None else m)), dtype_of(dtype)
    type = storable(wanted) or "f32"
    return draft.map(w.select(w.eq(coord(0), coord(1)), one(type), zero(type)), dtype=wanted)


@recipe("diagonal_copy diagonal", "a copy")
def diagonal_copy(input: Shaped, offset: int = 0, dim1: int = 0, dim2: int = 1) -> MapDescriptor:
    a, b = _plane(dim1, dim2, input.rank)
    kept = [axis for axis in range(input.rank) if axis not in (a, b)]
    draft = Draft(_diagonal_shape(input, offset, a, b))
    along, places = coord(len(kept)), [coord(0)] * input.rank
    for i, axis in enumerate(kept):
        places[axis] = coord(i)
    places[a] = along + draft.number("down", max(-offset, 0), "i64")
    places[b] = along + draft.number("right", max(offset, 0), "i64")
    return draft.map(draft.source("input", input).at(places), dtype=input.dtype)


def _plane(dim1: int, dim2: int, rank: int) -> tuple[int, int]:
    """The two axes of a diagonal."""
    a, b = axis_of("dim1", dim1, rank), axis_of("dim2", dim2, rank)
    if a == b or rank < 2:
        refuse("dim2", "an axis other than dim1", dim2)
    return a, b


def _diagonal_shape(input: Shaped, offset: int, a: int, b: int) -> Shape:
    """The shape of a diagonal: the axes other than a and b, then the axis along the diagonal."""
    rows, columns = input.shape[a] - max(-offset, 0), input.shape[b] - max(offset, 0)
    return (*(size for axis, size in enumerate(input.shape) if axis not in (a, b)), max(min(rows, columns), 0))


def _fits(src: Shaped, shape: Shape) -> None:
    """Refuses a src that is not as large as the part that it replaces."""
    if src.shape != shape:
        refuse("src", f"a tensor of shape {shape}, the shape of the part of input that it replaces", src.shape)


@recipe("linalg.diagonal", "a copy")
def linalg_diagonal(input: Shaped, offset: int = 0, dim1: int = -2, dim2: int = -1) -> MapDescriptor:
    return diagonal_copy.make(input, offset, dim1, dim2)


@recipe("diag_embed")
def diag_embed(input: Shaped, offset: int = 0, dim1: int = -2, dim2: int = -1) -> MapDescriptor:
    """Places the last axis on a diagonal of two new axes."""
    rank = input.rank + 1
    a, b = axis_of("dim1", dim1, rank), axis_of("dim2", dim2, rank)
    if a == b or not input.rank:
        refuse("dim2", "an axis other than dim1, and an input with at least one axis", dim2)
    size, rest = input.shape[-1] + abs(offset), iter(input.shape[:-1])
    draft = Draft([size if axis in (a, b) else next(rest) for axis in range(rank)])
    along = coord(a) - draft.number("down", max(-offset, 0), "i64")
    across = coord(b) - draft.number("right", max(offset, 0), "i64")
    places = [*(coord(axis) for axis in range(rank) if axis not in (a, b)), along]
    return draft.map(_on_diagonal(draft, input, places, along, across), dtype=input.dtype)


def _on_diagonal(draft: Draft, input: Shaped, places: list[Node], along: Node, across: Node) -> Node:
    nothing = zero(input.type)
    return w.select(w.eq(along, across), draft.source("input", input).at(places, nothing), nothing)


@recipe("diag", "the diagonal of a matrix, or a matrix with a given diagonal")
def diag(input: Shaped, diagonal: int = 0) -> MapDescriptor:
    if input.rank not in (1, 2):
        refuse("input", "1 or 2 axes", input.shape)
    return diag_embed.make(input, diagonal) if input.rank == 1 else diagonal_copy.make(input, diagonal)


@recipe("diagflat")
def diagflat(input: Shaped, offset: int = 0) -> MapDescriptor:
    """Places the elements of the flattened input on a diagonal."""
    size = input.numel + abs(offset)
    draft = Draft((size, size))
    along = coord(0) - draft.number("down", max(-offset, 0), "i64")
    across = coord(1) - draft.number("right", max(offset, 0), "i64")
    found = draft.source("input", Shaped((input.numel,), input.dtype)).at([along], zero(input.type))
    return draft.map(w.select(w.eq(along, across), found, zero(input.type)), dtype=input.dtype)


@recipe("diagonal_scatter")
def diagonal_scatter(input: Shaped, src: Shaped, offset: int = 0, dim1: int = 0, dim2: int = 1) -> MapDescriptor:
    a, b = _plane(dim1, dim2, input.rank)
    draft = Draft(input.shape)
    along = coord(a) - draft.number("down", max(-offset, 0), "i64")
    across = coord(b) - draft.number("right", max(offset, 0), "i64")
    _fits(src, _diagonal_shape(input, offset, a, b))
    places = [*(coord(axis) for axis in range(input.rank) if axis not in (a, b)), along]
    inside = w.and_(w.eq(along, across), along >= 0)
    found = w.select(inside, draft.source("src", src).at(places), draft.element("input", input))
    return draft.map(found, dtype=input.dtype)


@recipe("select_scatter")
def select_scatter(input: Shaped, src: Shaped, dim: int, index: int) -> MapDescriptor:
    axis = axis_of("dim", dim, input.rank)
    size = input.shape[axis]
    if not -size <= index < size:
        refuse("index", f"an index of the axis, {-size} .. {size - 1}", index)
    _fits(src, (*input.shape[:axis], *input.shape[axis + 1 :]))
    draft = Draft(input.shape)
    inside = w.eq(coord(axis), draft.number("index", index % size, "i64"))
    new = draft.along("src", src, [i for i in range(input.rank) if i != axis])
    return draft.map(w.select(inside, new, draft.element("input", input)), dtype=input.dtype)


@recipe("slice_scatter")
def slice_scatter(
    input: Shaped, src: Shaped, dim: int = 0, start: Scalar | None = None, end: Scalar | None = None, step: int = 1
) -> MapDescriptor:
    axis = axis_of("dim", dim, input.rank)
    if step < 1:
        refuse("step", "1 or more", step)
    first, last, by = slice(start, end, step).indices(input.shape[axis])
    _fits(src, (*input.shape[:axis], len(range(first, last, by)), *input.shape[axis + 1 :]))
    draft = Draft(input.shape)
    behind = coord(axis) - draft.number("start", first, "i64")
    number = draft.number("step", by, "i64")
    places = draft.here()
    places[axis] = w.floordiv(behind, number)
    inside = w.and_(w.and_(behind >= 0, w.eq(w.mod(behind, number), 0)), coord(axis) < draft.number("end", last, "i64"))
    found = w.select(inside, draft.source("src", src).at(places), draft.element("input", input))
    return draft.map(found, dtype=input.dtype)
