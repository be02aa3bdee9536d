"""Harness of quantisation and dequantisation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opfacade.plans.quantize import DequantizeDescriptor, QuantizeDescriptor
from opfacade.select.registry import examples
from opfacade.testing.batches import Batches, Campaign, DenseBatches, changed
from opfacade.testing.bounds import Report
from opfacade.testing.families._folds import FoldHarness
from opfacade.testing.harness import Harness, Ran, Sample

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.testing.subject import Subject


class BlockBatches(DenseBatches):
    """A unit consists of the rows that share scales: the rows of a block of `quant.block`."""

    def rows(self, order: Sequence[int]) -> list[int]:
        many = self.descriptor.quant.block[0]
        return [row for unit in super().rows(order) for row in range(unit * many, (unit + 1) * many)]

    def _axis(self, dims: Sequence[str]) -> int | None:
        return dims.index("rows of blocks") if "rows of blocks" in dims else super()._axis(dims)

    def _entries(self, name: str, order: Sequence[int]) -> list[int]:
        return super().rows(order) if name == "scale" else self.rows(order)


class QuantizeHarness(FoldHarness):
    unit = "total_num_rows"

    def judge(self, ran: Ran, sample: Sample) -> Report:
        """Judges only the blocks with valid rows. The scales of other blocks are `unowned`, and the other rows of `out` are
        invalid."""
        problem, args = ran.descriptor.valid_part(ran.args)
        return super().judge(replace(ran, descriptor=problem, args=args), sample)

    def unowned(self, descriptor: QuantizeDescriptor | DequantizeDescriptor, args: Any, name: str) -> Tensor | None:
        """Includes the scales of blocks without a valid row."""
        import torch

        if name != "scale" or descriptor.quant.scale != "block" or args.num_valid is None:
            return super().unowned(descriptor, args, name)
        free = torch.zeros(args.scale.shape, dtype=torch.bool, device=args.scale.device)
        free[descriptor.valid_blocks(args) :] = True
        return free

    def batches(self, subject: Subject, campaign: Campaign, rng: random.Random) -> Batches:
        kind = BlockBatches if subject.descriptor.quant.scale == "block" else DenseBatches
        return kind.drawn(subject, self.unit, campaign.needles, rng)

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        example: Any = rng.choice([example for example in examples() if example.op == op])
        return changed(example, total_num_rows=rng.randint(1, max(1, min(300, tokens))))


HARNESSES: dict[str, Harness] = {name: QuantizeHarness() for name in ("quantize", "dequantize")}
