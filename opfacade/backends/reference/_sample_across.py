"""Sampling over a sharded vocabulary in torch, with the arithmetic of `sample` on each rank's tokens.

A filter keeps a prefix of all tokens in one order: larger logits first, then lower ids. A radix search finds the end of the
prefix, eight bits of the logits per step: ranks add the weights (counts or masses) of 256 bins, and continue in the bin in
which the prefix ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

from opfacade.backends.reference.joined import Facts, gathered, rank_of
from opfacade.backends.reference.sampling.adjust import LARGEST, heated
from opfacade.backends.reference.sampling.kept import LOG2_E, UNIT, Filters, Ordered, kept_counts
from opfacade.backends.reference.sampling.philox import minus_log2_exponential, words, words_at
from opfacade.core.operands import valid_count
from opfacade.plans._collective.sample_across import BINS, SampleAcrossArgs, SampleAcrossDescriptor

if TYPE_CHECKING:
    from torch import Tensor

_CONTROLS = ("temperature", "top_k", "top_p", "min_p", "seed", "offset")
_BYTE, _BYTES = 8, 4
_LOW = 2**32 - 1


class Call(NamedTuple):
    """Rows of one call; only valid ones if num_valid is on the host. a: f32 [rows, this rank's tokens], adjusted logits, or
    plain logits if kernels adjust them. first: the token of the first column. ids: tokens of the columns. facts: must be equal
    on all ranks."""

    d: SampleAcrossDescriptor
    args: SampleAcrossArgs
    a: Tensor
    first: int
    ids: Tensor
    facts: Facts

    def all_ranks(self, own: Tensor) -> list[Tensor]:
        return gathered(self.d, self.args, own, self.facts)


Lists = Callable[[SampleAcrossDescriptor, SampleAcrossArgs], "tuple[Tensor, Tensor]"]


def sample_across(d: SampleAcrossDescriptor, args: SampleAcrossArgs, lists: Lists | None = None) -> None:
    """lists: computes the top tokens of each row on this rank by kernels: adjusted logits and columns. Used if d.listed."""
    call = _call_of(d, args, adjusted=lists is None or not d.listed)
    token = _from_lists(call, lists) if d.listed else _best(call, _kept(call))
    _store(call.args.token, token, call)
    _store(call.args.valid, token >= 0, call)


def _store(out: Tensor, made: Tensor, call: Call) -> None:
    import torch

    inside = _inside(call.args, len(out))
    out.copy_(made if inside is None else torch.where(inside, made.to(out.dtype), out))


def _inside(args: SampleAcrossArgs, rows: int) -> Tensor | None:
    """A mask of valid rows if num_valid is on a GPU, where the host does not read it; otherwise None."""
    import torch

    if args.num_valid is None or not args.num_valid.is_cuda:
        return None
    count = torch.where((args.num_valid >= 0) & (args.num_valid <= rows), args.num_valid, 0)
    return torch.arange(rows, device=count.device) < count


def _call_of(d: SampleAcrossDescriptor, args: SampleAcrossArgs, adjusted: bool = True) -> Call:
    import torch

    read = args.num_valid is not None and not args.num_valid.is_cuda
    rows = valid_count(args.num_valid, d.total_num_rows) if read and args.num_valid is not None else d.total_num_rows
    first = rank_of(args) * d.shard
    cut = {name: getattr(args, name)[:rows] for name in (*_CONTROLS, "token", "valid") if getattr(args, name) is not None}
    own = replace(args, logits=args.logits[:rows, : d.vocab - first], **cut)
    facts = facts_of(args, rows)
    ids = first + torch.arange(own.logits.shape[1], device=own.logits.device)
    a = _adjusted(own) if adjusted else own.logits
    return Call(d, own, a, first, ids, facts)


def facts_of(args: SampleAcrossArgs, rows: int) -> Facts:
    """Tensors that must be equal on all ranks: the number of valid rows, and the controls of these rows."""
    import torch

    inside = _inside(args, rows)
    controls = [getattr(args, name)[:rows] for name in _CONTROLS if getattr(args, name) is not None]
    return (args.num_valid, *[c if inside is None else torch.where(inside, c, 0) for c in controls])


def _adjusted(args: SampleAcrossArgs) -> Tensor:
    import torch

    a = args.logits.float()
    outside = ~(a > -torch.inf)
    a = (a.clamp(-LARGEST, LARGEST)).masked_fill(outside, -torch.inf) + 0.0
    return heated(a, args.temperature).contiguous()


def _keys(call: Call, a: Tensor, noise: Tensor) -> Tensor:
    """The random key of each token, the largest of which wins; with temperature 0, the logit. noise: random words."""
    import torch

    keys = a.double() * LOG2_E
    raced = keys + minus_log2_exponential(noise)
    t = call.args.temperature
    return raced if t is None else torch.where((t > 0)[:, None], raced, keys)


def _from_lists(call: Call, lists: Lists | None) -> Tensor:
    """Gathers the top tokens of all ranks and draws from them as on one rank."""
    import torch

    d, count = call.d, min(call.d.listed, call.a.shape[1])
    values, at = _largest(call.a, count) if lists is None else lists(d, call.args)
    own = torch.full((2, len(call.a), d.listed), -torch.inf, device=call.a.device)
    own[0, :, :count] = values
    own[1] = 0
    own[1, :, :count].view(torch.int32).copy_(call.ids[at])
    found = call.all_ranks(own)
    a, ids = torch.cat([one[0] for one in found], 1), torch.cat([one[1].view(torch.int32) for one in found], 1).long()
    rows = Ordered.of(a)  # concatenated in order of ids, so equal logits stay in order of ids
    ids = ids.gather(1, rows.ids)
    kept = kept_counts(d, cast("Filters", call.args), rows)
    inside = torch.arange(a.shape[1], device=a.device) < kept[:, None]
    noise = words_at(call.args.seed, call.args.offset, d.stream, ids)
    return _first(_keys(call, rows.a, noise).masked_fill(~inside, -torch.inf), rows.a.masked_fill(~inside, -torch.inf), ids)


def _largest(a: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The top tokens of each row, and their columns. The sort key combines logit and column, so no two keys are equal."""
    import torch

    column = torch.arange(a.shape[1], device=a.device)
    words = (_sortable(a) - (1 << 31) << 32) + (_LOW - column)
    at = _LOW - (words.topk(count, dim=1).values & _LOW)
    return a.gather(1, at), at


def _first(keys: Tensor, a: Tensor, ids: Tensor) -> Tensor:
    """The token with the largest key; equal keys are decided by the larger logit, then the lower id. -1 if all are -inf."""
    import torch

    most = keys.amax(1, keepdim=True)
    a = a.masked_fill(keys != most, -torch.inf)
    tied = (keys == most) & (a == a.amax(1, keepdim=True))
    best = ids.expand(keys.shape).masked_fill(~tied, torch.iinfo(torch.int64).max).amin(1)
    return torch.where(a.amax(1) == -torch.inf, -1, best)


def _best(call: Call, keep: Tensor) -> Tensor:
    """The winner among the kept tokens of all ranks; each rank sends its own winner."""
    import torch

    noise = words(call.args.seed, call.args.offset, call.d.stream, call.a.shape[1], call.first)
    keys = _keys(call, call.a, noise).masked_fill(~keep, -torch.inf)
    token = _first(keys, call.a.masked_fill(~keep, -torch.inf), call.ids)
    at = (token - call.first).clamp(min=0)[:, None]
    own = call.a.new_empty(len(token), 4)  # 16 bytes per row: key, logit, token
    own[:, :2].view(torch.float64).copy_(keys.gather(1, at))
    own[:, 2:3] = call.a.gather(1, at)
    own[:, 3:].view(torch.int32).copy_(token[:, None])
    found = torch.stack(call.all_ranks(own), 1)
    ids = found[..., 3].view(torch.int32).long()
    keys, a = found[..., :2].view(torch.float64)[..., 0], found[..., 2]
    return _first(keys.masked_fill(ids < 0, -torch.inf), a.masked_fill(ids < 0, -torch.inf), ids)


def _kept(call: Call) -> Tensor:
    """A mask of this rank's tokens that all filters keep."""
    import torch

    d, args = call.d, call.args
    some = call.a > -torch.inf
    keep = some
    if d.top_k:
        keep = _prefix(call, some, some.long(), lambda total: _counts(call, total))
    if d.top_p or d.min_p:
        below = _below(call)
        inside = keep if d.order == "top_k_first" else some
        if args.top_p is not None:
            masses = (UNIT * (-below).exp2()).round().long()
            p = args.top_p.double()
            cut = _prefix(
                call, inside, masses, lambda total: (total.double() * p).ceil().nan_to_num(0, 0, 0).clamp(min=1).long()
            )
            keep = keep & (cut | ~(p < 1)[:, None])
        if args.min_p is not None:
            most = -args.min_p.double().clamp(max=1)[:, None].log2()
            keep = keep & ((below <= most) | ~(args.min_p > 0)[:, None])
    return keep


def _counts(call: Call, total: Tensor) -> Tensor:
    """The number of candidates that top_k keeps."""
    top_k, vocab = call.args.top_k, call.d.vocab
    if top_k is None:
        return total
    k = top_k.long()
    k = k.masked_fill((k <= 0) | (k >= vocab), vocab)
    k = k if call.d.max_top_k is None else k.clamp(max=call.d.max_top_k)
    return k.minimum(total)


def _below(call: Call) -> Tensor:
    """The distance below the largest logit of all ranks in units of ln 2; infinite for tokens that are not candidates."""
    import torch

    top = torch.stack(call.all_ranks(call.a.amax(1))).amax(0)
    b = call.a.double() * LOG2_E
    return torch.where(call.a > -torch.inf, (top.double() * LOG2_E)[:, None] - b, torch.inf)


def _sortable(a: Tensor) -> Tensor:
    """32-bit words, as int64, in the order of the f32 numbers."""
    import torch

    bits = a.view(torch.int32).long()
    return torch.where(bits < 0, ~bits, bits | 1 << 31) & 0xFFFFFFFF


def _prefix(call: Call, inside: Tensor, weights: Tensor, target: Callable[[Tensor], Tensor]) -> Tensor:
    """A mask of the tokens inside that are preceded by a weight below target(total weight). Equal logits have equal weights."""
    import torch

    bits, left = _sortable(call.a), inside
    weights = weights.masked_fill(~inside, 0)
    keep = torch.zeros_like(inside)
    rest = call.a.new_zeros(len(call.a), dtype=torch.int64)
    for step in range(_BYTES):
        bins = bits >> _BYTE * (_BYTES - 1 - step) & BINS - 1
        own = rest.new_zeros(len(rest), BINS).scatter_add_(1, bins, weights.masked_fill(~left, 0))
        parts = torch.stack(call.all_ranks(own))
        total = parts.sum(0)
        if step == 0:
            whole, rest = total.sum(1), target(total.sum(1))
            every = (rest > whole)[:, None]  # a rounded-up target may exceed the sum
        above = total.flip(1).cumsum(1).flip(1) - total
        end = ((above < rest[:, None]) & (total > 0)).long().argmax(1, keepdim=True)  # the lowest such bin
        keep = keep | (left & (bins > end))
        left = left & (bins == end)
        rest = rest - above.gather(1, end)[:, 0]
    # The remaining tokens have equal logits. Lower ranks have lower ids.
    earlier = parts[: rank_of(call.args)].sum(0).gather(1, end)
    own_before = weights.masked_fill(~left, 0).cumsum(1) - weights
    return inside & (every | keep | (left & (earlier + own_before < rest[:, None])))
