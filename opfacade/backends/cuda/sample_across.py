"""sample_across by kernels: adjusted logits, the first tokens of each row of a shard, and a draw from all lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from opfacade.backends.cuda import sum_fold, support
from opfacade.core.target import Target
from opfacade.plan import Plan
from opfacade.plans._collective.sample_across import SampleAcrossArgs, SampleAcrossDescriptor
from opfacade.plans._sampling.adjust import AdjustLogitsArgs, AdjustLogitsDescriptor
from opfacade.plans._sampling.top_k import TopKArgs, TopKDescriptor
from opfacade.plans._steps import problem

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.jit.spec import JitSpec

MOST_LISTS = 8  # kMostLists of kernels/sampling/draw_listed_params.h
_SWITCHES = ("temperature", "top_p", "min_p", "num_valid")  # of the kernel that draws
_OPERANDS = ("temperature", "top_k", "top_p", "min_p", "seed", "offset", "num_valid", "token", "valid")
Draw = Callable[[SampleAcrossDescriptor, SampleAcrossArgs], None]
Gather = Callable[[SampleAcrossDescriptor, SampleAcrossArgs, "Tensor"], "list[Tensor]"]  # of a tensor of each rank


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
    """Adjusted logits and columns of the first tokens of each row. Kernels are loaded now: a graph that is captured may not."""
    known = _compiled(d)

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


def draws(d: SampleAcrossDescriptor) -> bool:
    """Whether one kernel draws from the lists of all ranks: few of them, and each shard has as many tokens as a list."""
    return 0 < d.listed <= d.vocab - (d.world - 1) * d.shard and 1 < d.world <= MOST_LISTS


def alone(d: SampleAcrossDescriptor) -> Any:
    """The draw of one rank with the same filters, whose arithmetic the kernel has."""
    switches = {name: getattr(d, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    sizes = {"total_num_rows": d.total_num_rows, "vocab": d.vocab, "max_top_k": d.max_top_k, "stream": d.stream}
    return problem("sample", **sizes, **switches)


def draw_spec(d: SampleAcrossDescriptor, target: Target) -> JitSpec:
    return support.spec_of("sampling/draw_listed", support.pairs(**{n: True for n in _SWITCHES if getattr(d, n)}), target)


def draw_arguments(d: SampleAcrossDescriptor, args: SampleAcrossArgs, lists: list[Tensor]) -> list[object]:
    """The arguments of the kernel that draws, in the order of csrc/sampling/draw_listed.cc.jinja."""
    tensors = [getattr(args, name) for name in _OPERANDS if getattr(args, name) is not None]
    sizes = (d.vocab, d.max_top_k, d.stream, d.listed, d.shard, d.world)
    return [*tensors, *sizes, *[one.data_ptr() for one in lists]]


def drawer(d: SampleAcrossDescriptor, target: Target, allow_build: bool, label: str, gather: Gather) -> Draw:
    """A draw in which no step is torch's but those of `gather`. Kernels are loaded now."""
    module = sum_fold.module_of(draw_spec(d, target), allow_build, label)
    known = _compiled(d)

    def run(d: SampleAcrossDescriptor, args: SampleAcrossArgs) -> None:
        import torch

        rank = 0 if args.group is None else args.group.rank
        rows, width = d.total_num_rows, min(d.shard, d.vocab - rank * d.shard)
        adjust, first = known[width]
        a = torch.empty(rows, width, device=args.logits.device).copy_(args.logits[:, :width])
        adjust.run(AdjustLogitsArgs(logits=a, temperature=args.temperature if d.temperature else None))
        own = a.new_empty(2, rows, d.listed)
        first.run(TopKArgs(x=a, values=own[0], positions=own[1].view(torch.int32)))
        module.run(*draw_arguments(d, args, gather(d, args, own)))

    return run


def _compiled(d: SampleAcrossDescriptor) -> dict[int, Steps]:
    """The plans of all ranks, by columns: the last may have fewer than others."""
    known = {width: steps_of(d, width) for width in (d.shard, d.vocab - (d.world - 1) * d.shard)}
    for steps in known.values():
        steps.adjust.compile()
        steps.first.compile()
    return known
