"""Batches of ragged rows: the same rows in any order, among other rows of any length."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from opfacade.plans._folds.ragged import ranges_of
from opfacade.plans._programs.args import IN, OUT
from opfacade.testing.batches import EMPTY, NEIGHBOURS, Campaign, changed, log_uniform
from opfacade.testing.bits import fill
from opfacade.testing.inputs import make_args

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.testing.subject import Subject

_LONGEST = 3000  # elements per row; short rows are folded by a warp, long rows by a CTA


@dataclass(frozen=True)
class RaggedBatches:
    """`axis` is the axis of every output along the first dimension of the program, 0 or 1."""

    descriptor: Any
    args: Any
    axis: int

    @classmethod
    def drawn(cls, subject: Subject, campaign: Campaign, rng: random.Random) -> RaggedBatches:
        """campaign.needles rows and NEIGHBOURS full of NaN and infinities."""
        import torch

        first = {made.over[0] for made in subject.descriptor.outputs}
        if len(first) > 1 or first - {0, 1}:
            raise NotImplementedError(f"{subject.descriptor.op}: its outputs do not have the same first axis")
        top = min(_LONGEST, campaign.longest)
        lengths = [log_uniform(rng, top) for _ in range(campaign.needles + NEIGHBOURS)]
        ends = torch.tensor([0, *lengths]).cumsum(0)
        shape = (len(lengths), int(ends[-1]), *subject.descriptor.shape[2:])
        descriptor = changed(subject.descriptor, shape=shape)
        args = make_args(descriptor, rng.randrange(2**31), subject.device)
        args.indptr.copy_(ends)
        found = cls(descriptor, args, first.pop())
        found._spoil(int(ends[campaign.needles]))
        return found

    def _spoil(self, begin: int) -> None:
        for name, over in self._tensors():
            tensor = getattr(self.args, name)
            if name in IN and 1 in over and tensor.is_floating_point():
                odd = tensor.movedim(over.index(1), 0)
                odd[begin::2], odd[begin + 1 :: 2] = math.nan, math.inf

    def _tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        found = [(name, one.over or ()) for name, one in zip(IN, self.descriptor.inputs, strict=False)]
        return found + [(name, one.over) for name, one in zip(OUT, self.descriptor.outputs, strict=False)]

    def batch(self, order: Sequence[int], spare: int = 0) -> tuple[Any, Any]:
        """`spare` is the number of elements after the last row, which belong to no row."""
        import torch

        units = [unit for unit in order if unit != EMPTY]
        elements = self._elements(units)
        more = [*elements, *([0] * spare if self.descriptor.shape[1] else [])]
        index = {0: torch.tensor(units), 1: torch.tensor(more)}
        values: dict[str, Tensor] = {}
        for name, over in self._tensors():
            tensor = getattr(self.args, name)
            for axis in {0, 1} & set(over):
                tensor = tensor.index_select(over.index(axis), index[axis].long().to(tensor.device))
            values[name] = fill(tensor, math.nan) if name in OUT else tensor
        lengths = torch.tensor([0, *(len(self._elements([unit])) for unit in units)])
        values["indptr"] = lengths.cumsum(0).to(self.args.indptr)
        shape = (len(units), len(more), *self.descriptor.shape[2:])
        return changed(self.descriptor, shape=shape), replace(self.args, **values)

    def _elements(self, units: Sequence[int]) -> list[int]:
        ranges = ranges_of(self.args.indptr, self.descriptor.shape[1])
        return [place for unit in units for place in range(*ranges[unit])]

    def rows(self, order: Sequence[int]) -> list[int]:
        units = [unit for unit in order if unit != EMPTY]
        return self._elements(units) if self.axis == 1 else units

    def new_rows(self, order: Sequence[int]) -> list[int]:
        return list(range(len(self.rows(order))))

    def by_row(self, descriptor: object, name: str, args: object) -> Tensor:
        return getattr(args, name)  # type: ignore[no-any-return]

    def moved(self, rng: random.Random) -> RaggedBatches:
        """Returns this object, because each batch is a copy."""
        return self
