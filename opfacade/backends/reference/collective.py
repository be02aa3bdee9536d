"""Ops over several ranks in torch: every rank computes the same results from the data of all ranks, in the order of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from opfacade.backends.reference import _all_reduce_norm as _normed
from opfacade.backends.reference._sample_across import sample_across
from opfacade.backends.reference.declared import reference
from opfacade.backends.reference.joined import as_bytes, filled_on_failure, gathered, rank_of, sum_in_order, swapped
from opfacade.core.candidate import Candidate
from opfacade.core.dtypes import torch_dtype
from opfacade.core.guarantee import EXACT, ErrorModel, PrecisionGuarantee, RankInvariant
from opfacade.plans.collective import (
    AllReduceNormDescriptor,
    CollectiveArgs,
    CollectiveDescriptor,
    LogprobAcrossArgs,
    LogprobAcrossDescriptor,
    MergeAcrossArgs,
    MergeAcrossDescriptor,
    SampleAcrossDescriptor,
)

if TYPE_CHECKING:
    from torch import Tensor

_TESTS = "tests/families/collective/test_reference.py"


def _collective(descriptor: CollectiveDescriptor, args: CollectiveArgs) -> None:
    import torch

    rank, most = rank_of(args), max(descriptor.counts)
    found = _exchanged(descriptor, args)
    if descriptor.kind == "all_gather":
        args.out.copy_(torch.cat([part[:count] for part, count in zip(found, descriptor.counts, strict=True)]))
    elif descriptor.kind == "all_reduce":
        args.out.copy_(sum_in_order(found))
    elif descriptor.kind == "reduce_scatter":
        args.out[: descriptor.counts[rank]].copy_(sum_in_order(found)[: descriptor.counts[rank]])
    else:
        for place, part in enumerate(found):
            own = slice(place * most, place * most + descriptor.counts[rank])
            args.out[own].copy_(part[: descriptor.counts[rank]])


def _exchanged(descriptor: CollectiveDescriptor, args: CollectiveArgs) -> list[Tensor]:
    """The rows that each rank sends to this one, padded to the largest count."""
    x = args.x
    if descriptor.kind in ("all_gather", "all_reduce"):
        return gathered(descriptor, args, x)
    most, starts = max(descriptor.counts), [0, *accumulate(descriptor.counts)]
    places = [x.new_zeros(most, x.shape[1]) for _ in descriptor.counts]
    for place, start, count in zip(places, starts, descriptor.counts, strict=False):
        place[:count] = x[start : start + count]
    return swapped(descriptor, args, places, places[0])


def _merge(descriptor: MergeAcrossDescriptor, args: MergeAcrossArgs) -> None:
    states_o, states_lse = states_of_all(descriptor, args)
    merged, total = _in_order(states_o, states_lse.double(), kept_sinks(descriptor, args))
    args.o.copy_(merged)
    args.lse.copy_(total)


def states_of_all(descriptor: MergeAcrossDescriptor, args: MergeAcrossArgs) -> tuple[Tensor, Tensor]:
    """o, in the exchange type, and lse of the states of all ranks, in merge order."""
    import torch

    lses = _cut(descriptor, args.lse_part)
    parts = _cut(descriptor, args.o_part.to(torch_dtype(descriptor.exchange_dtype or descriptor.dtype)))
    found, split = _states(descriptor, args, parts, lses), 4 * lses[0].numel()
    states_lse = torch.stack([p[:split].view(torch.float32).view(lses[0].shape) for p in found], 1).flatten(0, 1)
    states_o = torch.stack([p[split:].view(parts[0].dtype).view(parts[0].shape) for p in found], 1).flatten(0, 1)
    return states_o, states_lse


def _states(d: MergeAcrossDescriptor, args: MergeAcrossArgs, parts: list[Tensor], lses: list[Tensor]) -> list[Tensor]:
    """The states of all ranks as bytes. Log-sum-exps come first, so that the data after them are aligned for any type."""
    import torch

    if d.scatter == "none":
        return gathered(d, args, torch.cat([as_bytes(lses[0]), as_bytes(parts[0])]), (args.sinks,))
    packed = [torch.cat([as_bytes(lse), as_bytes(part)]) for part, lse in zip(parts, lses, strict=True)]
    return swapped(d, args, packed, packed[0], (args.sinks,))


def _cut(descriptor: MergeAcrossDescriptor, states: Tensor) -> list[Tensor]:
    """The heads of [states, rows, heads, ..] that each rank keeps."""
    if descriptor.scatter == "none":
        return [states] * descriptor.world
    return list(states.chunk(descriptor.world, 2))


def kept_sinks(descriptor: MergeAcrossDescriptor, args: MergeAcrossArgs) -> Tensor | None:
    """The sinks of the heads that this rank keeps; None without sinks."""
    if args.sinks is None or descriptor.scatter == "none":
        return args.sinks
    return args.sinks.chunk(descriptor.world)[rank_of(args)]


def _in_order(states_o: Tensor, states_lse: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Merged (o, lse) in f64. Empty states add exactly 0, so their number does not change bits."""
    import torch

    top = states_lse.amax(0)
    top = top if sinks is None else torch.maximum(top, sinks.double().expand_as(top))
    top = torch.where(top == -math.inf, 0.0, top)
    total = torch.zeros_like(top) if sinks is None else (sinks.double() - top).exp()
    o = torch.zeros(states_o.shape[1:], dtype=torch.float64, device=states_o.device)
    for state_o, state_lse in zip(states_o, states_lse, strict=True):
        weight = (state_lse - top).exp()
        total = total + weight
        o = o + torch.where((state_lse == -math.inf)[..., None], 0.0, state_o.double() * weight[..., None])
    return o / torch.where(total == 0, 1.0, total)[..., None], top + total.log()


def _logprob(descriptor: LogprobAcrossDescriptor, args: LogprobAcrossArgs) -> None:
    import torch

    first, label = rank_of(args) * descriptor.shard, args.label.long()
    own = args.logits[:, : max(0, descriptor.vocab - first)].double()
    local = label - first
    mine = (local >= 0) & (local < own.shape[1])
    hit = torch.where(mine, own.gather(1, local.clamp(0, own.shape[1] - 1)[:, None])[:, 0], 0.0)
    told = torch.cat([_tiles(descriptor, own).flatten(1), hit[:, None]], 1)
    found = gathered(descriptor, args, told, (args.label,))
    tiles = torch.cat([part[:, :-1].view(-1, 2, descriptor.tiles) for part in found], 2)
    lse = _joined(tiles[:, 0], tiles[:, 1])
    known = (label >= 0) & (label < descriptor.vocab)
    owner = (label // descriptor.shard).clamp(0, descriptor.world - 1)
    logit = torch.stack([part[:, -1] for part in found]).gather(0, owner[None])[0]
    sign = -1.0 if descriptor.loss else 1.0
    args.out.copy_(torch.where(known, sign * (logit - lse), 0.0))
    args.lse.copy_(lse)


def _tiles(descriptor: LogprobAcrossDescriptor, own: Tensor) -> Tensor:
    """[rows, 2, tiles] in f64: the largest logit of each tile, and its sum of exp relative to that."""
    import torch

    room = descriptor.tiles * descriptor.tile - own.shape[1]
    tiles = torch.nn.functional.pad(own, (0, room), value=-math.inf).view(own.shape[0], descriptor.tiles, descriptor.tile)
    top = tiles.amax(2)
    base = torch.where(top == -math.inf, 0.0, top)
    total = torch.zeros_like(top)
    for column in (tiles - base[..., None]).exp().unbind(2):
        total = total + column
    return torch.stack([top, total], 1)


def _joined(tops: Tensor, sums: Tensor) -> Tensor:
    """log of all sums, added in the order of tiles."""
    import torch

    top = tops.amax(1)
    base = torch.where(top == -math.inf, 0.0, top)
    total = torch.zeros_like(top)
    for tile_top, tile_sum in zip(tops.unbind(1), sums.unbind(1), strict=True):
        total = total + tile_sum * (tile_top - base).exp()
    return base + total.log()


def _promise(model: str, ranks: RankInvariant, accumulator: str, test: str) -> PrecisionGuarantee:
    return PrecisionGuarantee(
        math_precision="f32" if accumulator == "f32" else "f64",
        accumulator=accumulator,
        deterministic=True,
        rank_invariant=ranks,
        bounded_wait="abort",
        error_model=ErrorModel(id=model),
        evidence=(f"{_TESTS}::{test}", _normed.BOUNDED),
    )


def _of_collective(descriptor: CollectiveDescriptor) -> PrecisionGuarantee:
    test = "test_plain_collectives_are_those_of_a_list"
    return _promise("rank-sum-f32", "ranks", "f32", test) if descriptor.adds else _promise(EXACT, "world", "none", test)


def _of_logprob(descriptor: LogprobAcrossDescriptor) -> PrecisionGuarantee:
    ranks: RankInvariant = "world" if descriptor.shard % descriptor.tile == 0 else "ranks"
    return _promise("logprob-f64", ranks, "f64", "test_logprobs_have_the_bits_of_one_rank")


def _candidate(kind: Any, promise: Any, run: Callable[[Any, Any], None], name: str, facts: Any = ()) -> Candidate:
    filled = filled_on_failure(run, spreads=kind is not LogprobAcrossDescriptor)
    return reference(kind, promise, lambda d: ((name, d.dtype),), filled, facts)


# As in `sample` on one rank: adjusted logits are rounded to f32, and random keys are f64.
_RACE = PrecisionGuarantee(
    math_precision="f64",
    accumulator="i64",
    deterministic=True,
    rank_invariant="world",
    bounded_wait="abort",
    error_model=ErrorModel(
        id="race-f32", constants=(("exp2", 2.0**-50), ("key", 2.0**-40), ("roundoff", 2.0**-52), ("tanh", 2.0**-21))
    ),
    evidence=("tests/families/collective/test_sample_across.py::test_a_token_is_that_of_one_rank", _normed.BOUNDED),
)

CANDIDATES = (
    _candidate(CollectiveDescriptor, _of_collective, _collective, "x", lambda d: (("kind", d.kind),)),
    _candidate(
        MergeAcrossDescriptor,
        _promise("merge-across-f64", "world", "f64", "test_merges_have_the_bits_of_one_rank"),
        _merge,
        "o_part",
        lambda d: (("exchange", d.exchange_dtype or d.dtype), ("out", d.out_dtype or d.dtype), ("sinks", d.sinks)),
    ),
    _candidate(LogprobAcrossDescriptor, _of_logprob, _logprob, "logits", lambda d: (("loss", d.loss),)),
    reference(
        AllReduceNormDescriptor, _normed.promise, _normed.sku_dtypes, filled_on_failure(_normed.all_reduce_norm), _normed.facts
    ),
    reference(SampleAcrossDescriptor, _RACE, lambda d: (("logits", d.dtype),), filled_on_failure(sample_across)),
)
