"""lax's slices whose start indices are in a tensor. A start index is clamped so that the slice is within the operand, as in
lax."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant, coord
from opfacade.recipes._draft import Draft
from opfacade.recipes._tensors import Shaped, axis_of, refuse, sizes
from opfacade.recipes.data_movement.lookup import index_of


def dynamic_slice(operand: Shaped, start_indices: Shaped, slice_sizes: object) -> MapDescriptor:
    """start_indices: an integer tensor with one element per axis."""
    wanted = sizes("slice_sizes", slice_sizes)
    if len(wanted) != operand.rank or any(not 0 <= size <= n for size, n in zip(wanted, operand.shape, strict=True)):
        refuse("slice_sizes", f"{operand.rank} sizes within {operand.shape}", wanted)
    draft = Draft(wanted)
    places = [coord(i) + start for i, start in enumerate(_starts(draft, operand, start_indices, wanted))]
    return draft.map(draft.source("operand", operand).at(places), dtype=operand.dtype)


def dynamic_update_slice(operand: Shaped, update: Shaped, start_indices: Shaped) -> MapDescriptor:
    """The operand with a part replaced by `update`."""
    if update.rank != operand.rank or any(size > n for size, n in zip(update.shape, operand.shape, strict=True)):
        refuse("update", f"{operand.rank} axes, with sizes within {operand.shape}", update.shape)
    if update.dtype != operand.dtype:
        refuse("update", f"{operand.dtype}, the dtype of operand", update.dtype)
    draft = Draft(operand.shape)
    x = draft.element("operand", operand)
    places = [coord(i) - start for i, start in enumerate(_starts(draft, operand, start_indices, update.shape))]
    inside: Node = constant(True, "bool")
    for i, place in enumerate(places):
        inside = w.and_(inside, w.and_(w.ge(place, 0), place < draft.number(f"size{i}", update.shape[i], "i64")))
    return draft.map(w.select(inside, draft.source("update", update).at(places), x), dtype=operand.dtype)


def _starts(draft: Draft, operand: Shaped, start_indices: Shaped, wanted: tuple[int, ...]) -> list[Node]:
    if not operand.rank or start_indices.shape != (operand.rank,):
        refuse(
            "start_indices", f"a tensor of shape ({operand.rank},), and an operand with at least one axis", start_indices.shape
        )
    source = draft.source("start_indices", start_indices)
    found = []
    for i, size in enumerate(wanted):
        room = draft.number(f"room{i}", operand.shape[i] - size, "i64")
        found.append(w.min_(w.max_(index_of(source.at([constant(i, "i64")])), 0), room))
    return found


def dynamic_slice_in_dim(operand: Shaped, start_index: Shaped, slice_size: int, axis: int = 0) -> MapDescriptor:
    """start_index: an integer tensor with one element."""
    shape = list(operand.shape)
    along = axis_of("axis", axis, operand.rank)
    shape[along] = slice_size
    if not operand.rank or not 0 <= slice_size <= operand.shape[along]:
        refuse("slice_size", f"at most the size of axis {along} of {operand.shape}", slice_size)
    draft = Draft(shape)
    places = [coord(i) for i in range(operand.rank)]
    places[along] = places[along] + _start(draft, start_index, operand.shape[along] - slice_size)
    return draft.map(draft.source("operand", operand).at(places), dtype=operand.dtype)


def _start(draft: Draft, given: Shaped, room: int) -> Node:
    if given.numel != 1:
        refuse("start_index", "an integer tensor with one element", given.shape)
    read = draft.source("start_index", given).at([constant(0, "i64")] * max(given.rank, 1))
    return w.min_(w.max_(index_of(read), 0), draft.number("room", room, "i64"))


MAKERS: Mapping[str, Callable[..., MapDescriptor]] = {
    "dynamic_slice": dynamic_slice,
    "dynamic_slice_in_dim": dynamic_slice_in_dim,
    "dynamic_update_slice": dynamic_update_slice,
}
