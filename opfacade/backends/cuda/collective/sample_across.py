"""Kernels of sample_across: one lists the top tokens of each row of a shard, another draws from the lists of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opfacade.backends.cuda import support
from opfacade.backends.cuda.collective import sum_fold
from opfacade.backends.cuda.sampling.split import ctas_of
from opfacade.core.target import Target
from opfacade.plans._collective.sample_across import SampleAcrossArgs, SampleAcrossDescriptor
from opfacade.plans._composites.steps import problem

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.jit.spec import JitSpec

LISTS_REVISION = 1
MOST_LISTS = 8  # kMostLists of kernels/sampling/draw_listed_params.h
_SWITCHES = ("temperature", "top_p", "min_p", "num_valid")  # flags of the kernel that draws
_OPERANDS = ("temperature", "top_k", "top_p", "min_p", "seed", "offset", "num_valid", "token", "valid")
Draw = Callable[[SampleAcrossDescriptor, SampleAcrossArgs], None]
Gather = Callable[[SampleAcrossDescriptor, SampleAcrossArgs, "Tensor"], "list[Tensor]"]  # gathers a tensor of each rank
Lister = Callable[[SampleAcrossArgs, "Tensor", int], None]


def list_spec(d: SampleAcrossDescriptor, target: Target) -> JitSpec:
    switches = {name: True for name in ("temperature", "num_valid") if getattr(d, name)}
    return support.spec_of("sampling/list_shard", support.pairs(dtype=d.dtype, **switches), target)


def list_arguments(d: SampleAcrossDescriptor, args: SampleAcrossArgs, own: Tensor, width: int, target: Target) -> list[object]:
    """The arguments of the kernel that lists a shard of `width` tokens, in the order of csrc/sampling/list_shard.cc.jinja.

    own: f32 [2, total_num_rows, tokens of a list]: adjusted logits, the largest first, and columns as i32.
    """
    import torch

    operands = [one for one in (args.temperature, args.num_valid) if one is not None]
    return [args.logits, *operands, own[0], own[1].view(torch.int32), width, ctas_of(width, target)]


def lister(d: SampleAcrossDescriptor, target: Target, allow_build: bool, label: str) -> Lister:
    """A function that writes the lists of a shard. Loads the kernel immediately, because a graph capture cannot load it."""
    module = sum_fold.module_of(list_spec(d, target), allow_build, label)
    return lambda args, own, width: module.run(*list_arguments(d, args, own, width, target))


def lists(
    d: SampleAcrossDescriptor, target: Target, allow_build: bool, label: str
) -> Callable[[SampleAcrossDescriptor, SampleAcrossArgs], tuple[Tensor, Tensor]]:
    """A function that returns adjusted logits and columns of the top tokens of each row, which torch merges."""
    listed = lister(d, target, allow_build, label)

    def found(d: SampleAcrossDescriptor, args: SampleAcrossArgs) -> tuple[Tensor, Tensor]:
        import torch

        rows, width = args.logits.shape
        # Zeros, because the kernel does not write invalid rows, but torch also uses their columns as indices.
        own = args.logits.new_zeros(2, rows, min(d.listed, width), dtype=torch.float32)
        listed(args, own, width)
        return own[0], own[1].view(torch.int32).long()

    return found


def draws(d: SampleAcrossDescriptor) -> bool:
    """Whether one kernel draws from the lists of all ranks: there are few ranks, and no shard is shorter than a list."""
    return 0 < d.listed <= d.vocab - (d.world - 1) * d.shard and 1 < d.world <= MOST_LISTS


def alone(d: SampleAcrossDescriptor) -> Any:
    """The `sample` problem with the same filters on one rank, whose arithmetic the kernel uses."""
    switches = {name: getattr(d, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    sizes = {"total_num_rows": d.total_num_rows, "vocab": d.vocab, "max_top_k": d.max_top_k, "stream": d.stream}
    return problem("sample", **sizes, **switches)


def draw_spec(d: SampleAcrossDescriptor, target: Target) -> JitSpec:
    return support.spec_of("sampling/draw_listed", support.pairs(**{n: True for n in _SWITCHES if getattr(d, n)}), target)


def specs(d: SampleAcrossDescriptor, target: Target) -> tuple[JitSpec, ...]:
    """The kernels of a call."""
    listed = (list_spec(d, target),) if d.listed else ()
    return (*listed, draw_spec(d, target)) if draws(d) else listed


def draw_arguments(d: SampleAcrossDescriptor, args: SampleAcrossArgs, lists: list[Tensor]) -> list[object]:
    """The arguments of the kernel that draws, in the order of csrc/sampling/draw_listed.cc.jinja."""
    tensors = [getattr(args, name) for name in _OPERANDS if getattr(args, name) is not None]
    sizes = (d.vocab, d.max_top_k, d.stream, d.listed, d.shard, d.world)
    return [*tensors, *sizes, *[one.data_ptr() for one in lists]]


def drawer_of_lists(
    d: SampleAcrossDescriptor, target: Target, allow_build: bool, label: str
) -> Callable[[SampleAcrossDescriptor, SampleAcrossArgs, list[Tensor]], None]:
    """A function that draws from the lists of all ranks. Loads the kernel immediately."""
    module = sum_fold.module_of(draw_spec(d, target), allow_build, label)
    return lambda d, args, lists: module.run(*draw_arguments(d, args, lists))


def drawer(d: SampleAcrossDescriptor, target: Target, allow_build: bool, label: str, gather: Gather) -> Draw:
    """A function that draws without torch operations except in `gather`. Loads the kernels immediately."""
    draw, listed = drawer_of_lists(d, target, allow_build, label), lister(d, target, allow_build, label)

    def run(d: SampleAcrossDescriptor, args: SampleAcrossArgs) -> None:
        import torch

        rank = 0 if args.group is None else args.group.rank
        own = args.logits.new_empty(2, d.total_num_rows, d.listed, dtype=torch.float32)
        listed(args, own, min(d.shard, d.vocab - rank * d.shard))
        draw(d, args, gather(d, args, own))

    return run
