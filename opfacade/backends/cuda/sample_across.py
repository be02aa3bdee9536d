"""The part of sample_across that reads a shard of the logits, by kernels: adjusted logits, and the first tokens of each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from opfacade.core.target import Target
from opfacade.plan import Plan
from opfacade.plans._collective.sample_across import SampleAcrossArgs, SampleAcrossDescriptor
from opfacade.plans._sampling.adjust import AdjustLogitsArgs, AdjustLogitsDescriptor
from opfacade.plans._sampling.top_k import TopKArgs, TopKDescriptor

if TYPE_CHECKING:
    from torch import Tensor


class Steps(NamedTuple):
    """The plans for a shard of so many columns."""

    adjust: Plan[AdjustLogitsArgs]
    first: Plan[TopKArgs]


def steps_of(d: SampleAcrossDescriptor, width: int, target: Target | None = None) -> Steps:
    rows = d.total_num_rows
    adjust = AdjustLogitsDescriptor(total_num_rows=rows, vocab=width, temperature=d.temperature)
    first = TopKDescriptor(total_num_rows=rows, vocab=width, k=min(d.listed, width))
    return Steps(Plan.select(adjust, target=target), Plan.select(first, target=target))


def lists(d: SampleAcrossDescriptor) -> Callable[[SampleAcrossDescriptor, SampleAcrossArgs], tuple[Tensor, Tensor]]:
    """Adjusted logits and columns of the first tokens of each row. Kernels are loaded now: a graph that is captured may not.

    The last rank may have fewer columns than others.
    """
    known = {width: steps_of(d, width) for width in (d.shard, d.vocab - (d.world - 1) * d.shard)}
    for steps in known.values():
        steps.adjust.compile()
        steps.first.compile()

    def found(d: SampleAcrossDescriptor, args: SampleAcrossArgs) -> tuple[Tensor, Tensor]:
        import torch

        rows, width = args.logits.shape
        adjust, first = known[width]
        a = torch.empty(rows, width, device=args.logits.device).copy_(args.logits)
        adjust.run(AdjustLogitsArgs(logits=a, temperature=args.temperature if d.temperature else None))
        values = a.new_empty(rows, min(d.listed, width))
        at = torch.empty(values.shape, dtype=torch.int32, device=a.device)
        first.run(TopKArgs(x=a, values=values, positions=at))
        return values + 0.0, at.long()

    return found
