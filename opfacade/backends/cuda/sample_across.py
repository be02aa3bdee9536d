"""The part of sample_across that reads a shard of the logits, by kernels: adjusted logits, and the first tokens of each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from opfacade.core.target import Target
from opfacade.plan import Plan
from opfacade.plans._collective.sample_across import SampleAcrossArgs, SampleAcrossDescriptor
from opfacade.plans._steps import problem

if TYPE_CHECKING:
    from torch import Tensor


class Steps(NamedTuple):
    """The plans for a shard of so many columns."""

    adjust: Plan[Any]
    first: Plan[Any]


def steps_of(d: SampleAcrossDescriptor, width: int, target: Target | None = None) -> Steps:
    size = {"total_num_rows": d.total_num_rows, "vocab": width, "dtype": "f32"}
    adjust = problem("adjust_logits", temperature=d.temperature, **size)
    return Steps(
        Plan.select(adjust, target=target), Plan.select(problem("topk", k=min(d.listed, width), **size), target=target)
    )


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
        heat = {"temperature": args.temperature} if d.temperature else {}
        adjust.run(adjust.descriptor.args_type(logits=a, **heat))
        values = a.new_empty(rows, min(d.listed, width))
        at = torch.empty(values.shape, dtype=torch.int32, device=a.device)
        first.run(first.descriptor.args_type(x=a, values=values, positions=at))
        return values + 0.0, at.long()

    return found
