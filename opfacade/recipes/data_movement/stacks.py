"""hstack, vstack, dstack and column_stack: cat of tensors with additional axes."""

from __future__ import annotations

from collections.abc import Callable

from opfacade.plans.elementwise import MapDescriptor
from opfacade.recipes._recipe import add
from opfacade.recipes._tensors import Shaped
from opfacade.recipes.data_movement.concatenation import MANY, joined, tensors_of

Grown = Callable[[tuple[int, ...]], tuple[int, ...]]


def _at_least(rank: int) -> Grown:
    """Adds axes of size 1 where numpy's atleast_nd adds them."""

    def grown(shape: tuple[int, ...]) -> tuple[int, ...]:
        if rank == 3 and len(shape) < 3:
            return (*((1,) * (2 - len(shape)) + shape), 1)
        return (1,) * (rank - len(shape)) + shape

    return grown


def _column(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) > 1 else (*((1,) * (1 - len(shape)) + shape), 1)


def _stacked(grown: Grown, axis: Callable[[int], int]) -> Callable[..., MapDescriptor]:
    def make(tensors: object) -> MapDescriptor:
        given = [Shaped(grown(one.shape), one.dtype) for one in tensors_of((tensors,))]
        return joined(given, axis(given[0].rank))

    return make


NOTE = f"{MANY}; operands have the additional axes"
add("hstack", _stacked(_at_least(1), lambda rank: 0 if rank == 1 else 1), NOTE)
add("vstack row_stack", _stacked(_at_least(2), lambda rank: 0), NOTE)
add("dstack", _stacked(_at_least(3), lambda rank: 2), NOTE)
add("column_stack", _stacked(_column, lambda rank: 1), NOTE)
