"""Several tensors as one: cat, stack, outer products and grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opfacade.plans._programs.args import MAX_INPUTS
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, coord
from opfacade.recipes._draft import Draft, zero
from opfacade.recipes._pointwise import common
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, axis_of, refuse

MANY = f"at most {MAX_INPUTS} tensors"


def tensors_of(given: Sequence[Any]) -> list[Shaped]:
    """A list of tensors, given as a list or as separate arguments."""
    found = list(given[0]) if len(given) == 1 and isinstance(given[0], list) else list(given)
    if not 1 <= len(found) <= MAX_INPUTS or not all(isinstance(one, Shaped) for one in found):
        refuse("tensors", f"a list of 1 to {MAX_INPUTS} tensors", f"{len(found)} arguments")
    common({f"tensors[{i}]": one for i, one in enumerate(found)})
    return found


def joined(tensors: Sequence[Shaped], dim: int, numbers: Sequence[int] = range(MAX_INPUTS)) -> MapDescriptor:
    """Concatenates along an axis: an element comes from the last tensor that begins at or before its position. numbers: the
    indices that appear in the names of the inputs."""
    axis = axis_of("dim", dim, tensors[0].rank)
    for i, one in enumerate(tensors):
        if one.rank != tensors[0].rank or any(
            a != b for at, (a, b) in enumerate(zip(one.shape, tensors[0].shape, strict=True)) if at != axis
        ):
            refuse(f"tensors[{i}]", f"the shape of the first tensor, {tensors[0].shape}, except along axis {axis}", one.shape)
    draft = Draft([sum(one.shape[axis] for one in tensors) if i == axis else n for i, n in enumerate(tensors[0].shape)])
    found: Node | None = None
    begin = 0
    for i, one in enumerate(tensors):
        if one.shape[axis] or (found is None and i == len(tensors) - 1):
            places = draft.here()
            first = draft.number(f"begin{i}", begin, "i64")
            places[axis] = places[axis] - first
            element = draft.source(f"tensors{numbers[i]}", one).at(places)
            found = element if found is None else w.select(coord(axis) >= first, element, found)
        begin += one.shape[axis]
    return draft.map(*([] if found is None else [found]), dtype=tensors[0].dtype)


@recipe("cat concat concatenate", MANY)
def cat(tensors: Sequence[Shaped], dim: int = 0) -> MapDescriptor:
    """Tensors without elements do not become operands."""
    given = tensors_of((tensors,))
    full = [i for i, one in enumerate(given) if one.shape != (0,)] or [0]
    return joined([given[i] for i in full], dim, full)


def _with_axis(tensors: Sequence[Shaped], axis: int) -> list[Shaped]:
    return [Shaped((*one.shape[:axis], 1, *one.shape[axis:]), one.dtype) for one in tensors]


@recipe("stack", MANY)
def stack(tensors: Sequence[Shaped], dim: int = 0) -> MapDescriptor:
    """Each tensor becomes one position of the new axis."""
    given = tensors_of((tensors,))
    axis = axis_of("dim", dim, given[0].rank + 1)
    shape = given[0].shape
    for i, one in enumerate(given):
        if one.shape != shape:
            refuse(f"tensors[{i}]", f"the shape of the first tensor, {shape}", one.shape)
    draft = Draft((*shape[:axis], len(given), *shape[axis:]))
    others = [i for i in range(len(draft.shape)) if i != axis]
    found = draft.along("tensors0", given[0], others)
    for i, one in enumerate(given[1:], 1):
        found = w.select(coord(axis) >= i, draft.along(f"tensors{i}", one, others), found)
    return draft.map(found, dtype=given[0].dtype)


@recipe("outer ger")
def outer(input: Shaped, vec2: Shaped) -> MapDescriptor:
    common({"input": input, "vec2": vec2})
    if input.rank != 1 or vec2.rank != 1:
        refuse("input", "two tensors with one axis", (input.shape, vec2.shape))
    draft = Draft((*input.shape, *vec2.shape))
    a, b = draft.along("input", input, (0,)), draft.along("vec2", vec2, (1,))
    return draft.map(w.and_(a, b) if a.type == "bool" else a * b, dtype=input.dtype)


@recipe("kron")
def kron(input: Shaped, other: Shaped) -> MapDescriptor:
    """Each element of the first tensor times the whole second tensor."""
    common({"input": input, "other": other})
    rank = max(input.rank, other.rank)
    a, b = ((1,) * (rank - one.rank) + one.shape for one in (input, other))
    draft = Draft([m * n for m, n in zip(a, b, strict=True)])
    outer_places, inner_places = [], []
    for axis, size in enumerate(b):
        by = draft.number(f"size{axis}", max(size, 1), "i64")
        outer_places.append(w.floordiv(coord(axis), by))
        inner_places.append(w.mod(coord(axis), by))
    x = draft.source("input", input).at(outer_places[rank - input.rank :])
    y = draft.source("other", other).at(inner_places[rank - other.rank :])
    return draft.map(w.and_(x, y) if x.type == "bool" else x * y, dtype=input.dtype)


@recipe("block_diag", MANY)
def block_diag(*tensors: Sequence[Shaped]) -> MapDescriptor:
    """Puts matrices on the diagonal; all other elements are 0."""
    given = [Shaped((1,) * (2 - one.rank) + one.shape, one.dtype) for one in tensors_of(tensors)]
    if any(one.rank > 2 for one in given):
        refuse("tensors", "at most 2 axes each", [one.shape for one in given])
    draft = Draft([sum(one.shape[0] for one in given), sum(one.shape[1] for one in given)])
    found, row, column = zero(given[0].type), 0, 0
    for i, one in enumerate(given):
        at = [coord(0) - draft.number(f"row{i}", row, "i64"), coord(1) - draft.number(f"column{i}", column, "i64")]
        if one.numel:
            source = draft.source(f"tensors{i}", Shaped(tensors_of(tensors)[i].shape, one.dtype))
            rank = source.given.rank
            inside = w.and_(w.and_(at[0] >= 0, at[0] < one.shape[0]), w.and_(at[1] >= 0, at[1] < one.shape[1]))
            found = w.select(inside, source.at(at[2 - rank :]), found)
        row, column = row + one.shape[0], column + one.shape[1]
    return draft.map(found, dtype=given[0].dtype)


@recipe("meshgrid", "2 to 4 tensors, with one output each: out0, out1 and so on")
def meshgrid(*tensors: Sequence[Shaped], indexing: str = "ij") -> MapDescriptor:
    given = tensors_of(tensors)
    if len(given) > 4 or indexing not in ("ij", "xy"):
        refuse("tensors" if indexing in ("ij", "xy") else "indexing", 'at most 4 tensors, "ij" or "xy"', (len(given), indexing))
    order = list(range(len(given)))
    if indexing == "xy" and len(given) > 1:
        order[:2] = [1, 0]
    draft = Draft([given[axis].numel for axis in order])
    values = [draft.along(f"tensors{i}", Shaped((one.numel,), one.dtype), (order.index(i),)) for i, one in enumerate(given)]
    return draft.map(*values, dtype=given[0].dtype)
