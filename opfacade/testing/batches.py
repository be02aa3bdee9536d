"""Batches made of units of one call, such as requests or rows: in any order, repeated, or a single unit."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import Self

from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.testing.bits import fill
from opfacade.testing.inputs import DrawnLengths, make_args

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.testing.subject import Subject

EMPTY = -1  # a unit without content, in ops that support it
NEIGHBOURS = 10  # number of units after the needles, with extreme values


@dataclass(frozen=True, slots=True)
class Campaign:
    """Size of a test campaign. needles: compared requests. compositions: minimum batches per needle. largest: maximum batch
    size. longest, q_longest: maximum keys and rows of a request."""

    needles: int = 200
    compositions: int = 64
    largest: int = 256
    longest: int = 32768
    q_longest: int = 96


class Batches(Protocol):
    """The units of one call: needles, whose bits are compared, followed by NEIGHBOURS."""

    def batch(self, order: Sequence[int], spare: int = 0) -> tuple[Any, Any]:
        """(descriptor, args) of a batch of these units; EMPTY is a unit without content. spare: by how much upper bounds exceed
        the actual sizes."""

    def rows(self, order: Sequence[int]) -> list[int]:
        """The rows of these units in the outputs of a call with all units."""

    def new_rows(self, order: Sequence[int]) -> list[int]:
        """The indices of the same rows in the outputs of the batch."""

    def moved(self, rng: random.Random) -> Batches:
        """The same units at other addresses."""

    def by_row(self, descriptor: Any, name: str, args: Any) -> Tensor:
        """An output of a call with the axis of units first."""


def changed(descriptor: Descriptor[Any], **fields: object) -> Descriptor[Any]:
    """A descriptor with some fields changed, validated again."""
    return type(descriptor).model_validate(descriptor.model_dump() | fields)


def log_uniform(rng: random.Random, top: int) -> int:
    return min(top, max(1, round(math.exp(rng.uniform(0, math.log(top))))))


Resize = Callable[[Any, int], Any]


class DenseBatches:
    """Batches whose units are the entries along one dimension, such as rows. Operands without this dimension are the same in
    every batch. EMPTY units are ignored."""

    def __init__(self, descriptor: Descriptor[Any], args: Any, dim: str, resize: Resize | None = None) -> None:
        self.descriptor: Any = descriptor
        self.args, self.dim = args, dim
        self.resize = resize or (lambda problem, count: changed(problem, **{dim: count}))

    @classmethod
    def drawn(cls, subject: Subject, dim: str, count: int, rng: random.Random, resize: Resize | None = None) -> Self:
        """Draws `count` units, and NEIGHBOURS units full of NaN or infinities.

        resize: (problem, units) -> the problem with this number of units; None: `dim` is a field.
        """
        one = cls(subject.descriptor, None, dim, resize)
        rows = len(one.rows(range(count + NEIGHBOURS)))
        descriptor = one.resize(subject.descriptor, rows)
        args = make_args(descriptor, rng.randrange(2**31), subject.device, DrawnLengths(valid=rows))
        drawn = cls(descriptor, args, dim, resize)
        for name, axis in drawn._axes():
            if operands_of(descriptor)[name].role in ("in", "inout") and getattr(args, name).is_floating_point():
                drawn._spoil(name, axis, range(count, count + NEIGHBOURS, 2), math.nan)
                drawn._spoil(name, axis, range(count + 1, count + NEIGHBOURS, 2), math.inf)
        return drawn

    def _spoil(self, name: str, axis: int, units: Sequence[int], value: float) -> None:
        """Fill units of an operand, copying one entry at a time: for 8-bit types, torch has no indexed write, and `fill_`
        refuses values out of range."""
        import torch

        for entry in self._entries(name, units):
            getattr(self.args, name).select(axis, entry).copy_(torch.tensor(value))

    def _entries(self, name: str, order: Sequence[int]) -> list[int]:
        """Indices of the units along the axis of an operand."""
        return self.rows(order)

    def _axes(self) -> list[tuple[str, int]]:
        """The operands with the dimension, and its axis in each."""
        named = [(name, [dim.name for dim in spec.shape]) for name, spec in operands_of(self.descriptor).items()]
        found = [(name, self._axis(dims)) for name, dims in named]
        return [(name, axis) for name, axis in found if axis is not None]

    def _axis(self, dims: Sequence[str]) -> int | None:
        """The axis of an operand whose size is the dimension, perhaps rounded up; None if it has no such axis."""
        return next((at for at, dim in enumerate(dims) if dim == self.dim or dim.startswith(f"{self.dim} up to ")), None)

    def by_row(self, descriptor: Any, name: str, args: Any) -> Tensor:
        axis = dict(self._axes()).get(name)
        tensor: Tensor = getattr(args, name)
        if axis is None:
            return tensor
        units = next(dim.size for spec in operands_of(descriptor).values() for dim in spec.shape if dim.name == self.dim)
        return tensor.movedim(axis, 0)[:units]  # without the padding of a rounded extent

    def batch(self, order: Sequence[int], spare: int = 0) -> tuple[Any, Any]:
        import torch

        values = {name: getattr(self.args, name) for name in type(self.args).__slots__}
        problem = self.resize(self.descriptor, len(self.rows(order)))
        for name, axis in self._axes():
            spec = operands_of(problem)[name]
            if spec.role == "out":
                values[name] = fill(values[name].new_empty([dim.size for dim in spec.shape]), math.nan)
            else:
                index = torch.tensor(self._entries(name, order), dtype=torch.int64, device=values[name].device)
                values[name] = values[name].index_select(axis, index)
        for name in {spec.valid_rows for spec in operands_of(self.descriptor).values() if spec.valid_rows}:
            values[name] = torch.full_like(values[name], len(self.rows(order)))
        return problem, type(self.args)(**values)

    def rows(self, order: Sequence[int]) -> list[int]:
        return [unit for unit in order if unit != EMPTY]

    def new_rows(self, order: Sequence[int]) -> list[int]:
        return list(range(len(self.rows(order))))

    def moved(self, rng: random.Random) -> DenseBatches:
        """Returns the same object, because each batch is a copy at other addresses."""
        return self
