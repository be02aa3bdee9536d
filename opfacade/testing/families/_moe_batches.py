"""Batches of rows for gathering and combining, with `order` and `places` computed for each batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opfacade.plans.moe import MoeGatherArgs, MoeGatherDescriptor
from opfacade.testing.batches import DenseBatches
from opfacade.testing.bits import fill

if TYPE_CHECKING:
    from torch import Tensor


class GatherBatches(DenseBatches):
    """Batches of gathers: `order` lists all choices of each row in sequence."""

    def batch(self, order: Sequence[int], spare: int = 0) -> tuple[Any, Any]:
        import torch

        problem, args = super().batch(order, spare)
        choices = problem.total_num_rows * problem.top_k
        numbers = torch.arange(choices, dtype=torch.int32, device=args.x.device)
        out = fill(args.out.new_empty((choices, problem.hidden)), math.nan)
        count = None if args.num_valid is None else torch.full_like(args.num_valid, choices)
        return problem, replace(args, order=numbers, num_valid=count, out=out)

    def by_row(self, descriptor: MoeGatherDescriptor, name: str, args: MoeGatherArgs) -> Tensor:
        if name != "out":
            return super().by_row(descriptor, name, args)
        found: Tensor = args.out.view(-1, descriptor.top_k, descriptor.hidden)
        return found


class CombineBatches(DenseBatches):
    """Batches of combinations: y contains the rows that the batch uses, in the order of slots."""

    def batch(self, order: Sequence[int], spare: int = 0) -> tuple[Any, Any]:
        import torch

        problem, args = super().batch(order, spare)
        places = torch.arange(args.places.numel(), dtype=torch.int32, device=args.y.device).view(args.places.shape)
        y = self.args.y[args.places.clamp(min=0).flatten().long()]
        return problem, replace(args, y=y, places=places.masked_fill(args.places < 0, -1))
