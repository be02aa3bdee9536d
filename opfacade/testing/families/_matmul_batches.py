"""Batches of grouped products: rows with fixed groups, sorted by group."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opfacade.plans.matmul import GroupedMatmulArgs
from opfacade.testing.batches import NEIGHBOURS, DenseBatches, changed

if TYPE_CHECKING:
    from opfacade.testing.subject import Subject


class GroupedBatches(DenseBatches):
    """Units are rows of layout ragged; unit u belongs to group u mod groups in every batch."""

    @classmethod
    def of(cls, subject: Subject, count: int, rng: random.Random) -> GroupedBatches:
        """`count` rows with values (the harness fills no rows outside groups), and NEIGHBOURS with extreme values."""
        import torch

        fixed = {"num_x_rows": count + NEIGHBOURS} if subject.descriptor.gather else {}
        found = cls.drawn(
            subject, "total_num_rows", count, rng, lambda problem, rows: changed(problem, total_num_rows=rows, **fixed)
        )
        for name in ("x", "add"):
            rows = getattr(found.args, name)
            if rows is not None:
                generator = torch.Generator().manual_seed(rng.randrange(2**31))
                rows[:count] = torch.randn(rows[:count].shape, generator=generator).to(rows.device)
        return found

    def _sorted(self, order: Sequence[int]) -> list[int]:
        """Positions in `order`, by group."""
        kept = self.rows(order)
        return sorted(range(len(kept)), key=lambda place: kept[place] % self.descriptor.groups)

    def batch(self, order: Sequence[int], spare: int = 0) -> tuple[Any, GroupedMatmulArgs]:
        import torch

        kept = self.rows(order)
        units = [kept[place] for place in self._sorted(order)]
        problem, args = super().batch(units, spare)
        counts = [sum(unit % problem.groups == group for unit in units) for group in range(problem.groups)]
        indptr = torch.tensor([0, *counts], device=args.indptr.device).cumsum(0, dtype=torch.int32)
        return problem, replace(args, indptr=indptr)

    def new_rows(self, order: Sequence[int]) -> list[int]:
        places = self._sorted(order)
        return [places.index(place) for place in range(len(places))]
