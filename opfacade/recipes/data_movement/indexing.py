"""Data movement: each element of the result is an element of one input at a computed position. Exact, of every dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant, coord, extent
from opfacade.recipes._draft import Draft
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shape, Shaped, axes_of, axis_of, refuse, sizes

if TYPE_CHECKING:
    from opfacade.recipes._tensors import Dims


MODES = {"constant": None, "reflect": "reflect", "replicate": "clamp", "circular": "wrap"}


def moved(input: Shaped, shape: Sequence[int], places: Sequence[Node], outside: object = "clamp") -> MapDescriptor:
    """The input, read at positions computed from those of the result."""
    draft = Draft(shape)
    return draft.map(draft.source("input", input).at(places, outside), dtype=input.dtype)


def copied(input: Shaped, shape: Sequence[int] | None = None) -> MapDescriptor:
    """The input, expanded."""
    draft = Draft(input.shape if shape is None else shape)
    return draft.map(draft.element("input", input), dtype=input.dtype)


def unraveled(draft: Draft, linear: Node, shape: Shape, name: str = "size") -> list[Node]:
    """The coordinates, in a tensor of the given shape, of a row-major element index."""
    places: list[Node] = []
    for axis in range(len(shape) - 1, 0, -1):
        size = draft.number(f"{name}{axis}", max(shape[axis], 1), "i64")
        places, linear = [w.mod(linear, size), *places], w.floordiv(linear, size)
    return [linear, *places]


def raveled(rank: int) -> Node:
    """The row-major index of an element of the result."""
    found = coord(0) if rank else constant(0, "i64")
    for axis in range(1, rank):
        found = found * extent(axis) + coord(axis)
    return found


@recipe("clone contiguous alias_copy positive conj_physical conj resolve_conj resolve_neg real")
def clone(input: Shaped) -> MapDescriptor:
    """A copy from any strides to any strides, for real dtypes only."""
    return copied(input)


@recipe("expand_copy")
def expand_copy(input: Shaped, size: int | Sequence[int]) -> MapDescriptor:
    """-1 keeps an extent."""
    wanted = sizes("size", size)
    kept = (None,) * (len(wanted) - input.rank) + input.shape
    return copied(input, [have if one == -1 and have is not None else one for one, have in zip(wanted, kept, strict=True)])


@recipe("roll")
def roll(input: Shaped, shifts: object, dims: Dims = ()) -> MapDescriptor:
    """Without dims, the flattened tensor is rolled."""
    by, axes = sizes("shifts", shifts), axes_of("dims", dims, input.rank) if dims not in ((), [], None) else ()
    draft = Draft(input.shape)
    if not input.rank:
        return copied(input)
    if not axes:
        count = draft.number("count", max(input.numel, 1), "i64")
        at = w.mod(raveled(input.rank) - draft.number("shift", by[0], "i64"), count)
        return draft.map(draft.source("input", input).at(unraveled(draft, at, input.shape)), dtype=input.dtype)
    if len(by) != len(axes):
        refuse("shifts", f"{len(axes)} numbers, one for each entry of dims", shifts)
    places = draft.here()
    for i, (axis, shift) in enumerate(zip(axes, by, strict=True)):
        places[axis] = places[axis] - draft.number(f"shift{i}", shift, "i64")
    return draft.map(draft.source("input", input).at(places, "wrap"), dtype=input.dtype)


@recipe("flip")
def flip(input: Shaped, dims: Dims) -> MapDescriptor:
    axes = axes_of("dims", dims, input.rank)
    return moved(input, input.shape, [extent(i) - 1 - coord(i) if i in axes else coord(i) for i in range(input.rank)])


@recipe("fliplr")
def fliplr(input: Shaped) -> MapDescriptor:
    return flip.make(input, (1,))


@recipe("flipud")
def flipud(input: Shaped) -> MapDescriptor:
    return flip.make(input, (0,))


@recipe("rot90")
def rot90(input: Shaped, k: int = 1, dims: Dims = (0, 1)) -> MapDescriptor:
    """Rotates k times by 90 degrees, from the first axis toward the second."""
    axes = axes_of("dims", dims, input.rank)
    if len(axes) != 2:
        refuse("dims", "two axes", dims)
    a, b = axes
    order = list(range(input.rank))
    if k % 2:
        order[a], order[b] = b, a
    places = [coord(order.index(axis)) for axis in range(input.rank)]
    ends = [extent(order.index(axis)) - 1 - coord(order.index(axis)) for axis in range(input.rank)]
    backward = {0: (), 1: (b,), 2: (a, b), 3: (a,)}[k % 4]
    places = [ends[axis] if axis in backward else places[axis] for axis in range(input.rank)]
    return moved(input, [input.shape[axis] for axis in order], places)


@recipe("permute_copy permute", "a copy; torch's view needs no kernel")
def permute_copy(input: Shaped, dims: Dims) -> MapDescriptor:
    order = axes_of("dims", dims, input.rank)
    if len(order) != input.rank:
        refuse("dims", f"all {input.rank} axes", dims)
    return moved(input, [input.shape[axis] for axis in order], [coord(order.index(axis)) for axis in range(input.rank)])


@recipe("transpose_copy transpose swapaxes", "a copy")
def transpose_copy(input: Shaped, dim0: int, dim1: int) -> MapDescriptor:
    order = list(range(input.rank))
    if input.rank:
        a, b = axis_of("dim0", dim0, input.rank), axis_of("dim1", dim1, input.rank)
        order[a], order[b] = order[b], order[a]
    return permute_copy.make(input, tuple(order))


@recipe("t_copy t", "a copy")
def t_copy(input: Shaped) -> MapDescriptor:
    if input.rank > 2:
        refuse("input", "at most 2 axes", input.shape)
    return permute_copy.make(input, tuple(range(input.rank))[::-1])


@recipe("movedim moveaxis", "a copy")
def movedim(input: Shaped, source: object, destination: object) -> MapDescriptor:
    come, go = axes_of("source", source, input.rank), axes_of("destination", destination, input.rank)
    if len(come) != len(go):
        refuse("destination", f"{len(come)} axes, the number in source", destination)
    rest = iter(axis for axis in range(input.rank) if axis not in come)
    order = [come[go.index(axis)] if axis in go else next(rest) for axis in range(input.rank)]
    return permute_copy.make(input, tuple(order))


@recipe("view_copy reshape", "a copy")
def view_copy(input: Shaped, size: int | Sequence[int]) -> MapDescriptor:
    """A size of -1 is inferred."""
    wanted, known = list(sizes("size", size)), 1
    for one in wanted:
        known *= one if one != -1 else 1
    if -1 in wanted and known:
        wanted[wanted.index(-1)] = input.numel // known
    if Shaped(tuple(wanted), input.dtype).numel != input.numel or -1 in wanted:
        refuse("size", f"a shape with {input.numel} elements", size)
    draft = Draft(wanted)
    places = unraveled(draft, raveled(len(wanted)), input.shape)
    return draft.map(draft.source("input", input).at(places), dtype=input.dtype)


@recipe("ravel flatten", "a copy")
def ravel(input: Shaped, start_dim: int = 0, end_dim: int = -1) -> MapDescriptor:
    first, last = axis_of("start_dim", start_dim, input.rank), axis_of("end_dim", end_dim, input.rank)
    middle = Shaped(input.shape[first : last + 1], input.dtype).numel
    return view_copy.make(input, (*input.shape[:first], middle, *input.shape[last + 1 :]))


@recipe("squeeze_copy", "a copy")
def squeeze_copy(input: Shaped, dim: Dims = None) -> MapDescriptor:
    axes = range(input.rank) if dim is None else axes_of("dim", dim, input.rank)
    return view_copy.make(input, tuple(n for i, n in enumerate(input.shape) if n != 1 or i not in axes))


@recipe("unsqueeze_copy", "a copy")
def unsqueeze_copy(input: Shaped, dim: int) -> MapDescriptor:
    axis = axis_of("dim", dim, input.rank + 1)
    return view_copy.make(input, (*input.shape[:axis], 1, *input.shape[axis:]))
