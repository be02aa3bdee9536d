"""Sampling in torch: rows are sorted and filtered, and the largest random key in float64 wins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opfacade.backends.reference.sampling.adjust import OfLogits, adjusted, heated
from opfacade.backends.reference.sampling.kept import LOG2_E, UNIT, Ordered, kept_counts
from opfacade.backends.reference.sampling.philox import minus_log2_exponential, words
from opfacade.core.descriptor import operands_of
from opfacade.plans.sampling import ProbabilitiesDescriptor, SampleDescriptor

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.plans._sampling.call import SamplingCall
    from opfacade.plans.sampling import AdjustLogitsArgs, ProbabilitiesArgs, SampleArgs

_BLOCK = 2**23  # maximum elements that are sorted at a time


def sample(descriptor: SampleDescriptor, args: SampleArgs) -> None:
    """Computes the outputs of all valid rows, some rows at a time."""
    for part in blocks(descriptor, args):
        _sample(descriptor, part)


def blocks(
    descriptor: OfLogits | ProbabilitiesDescriptor, args: AdjustLogitsArgs | ProbabilitiesArgs | SampleArgs
) -> Iterator[Any]:
    """The call in parts of some rows, without invalid rows."""
    rows = descriptor.total_num_rows
    counted = rows if args.num_valid is None else int(args.num_valid[0])
    rows = counted if 0 <= counted <= rows else 0
    step = max(1, _BLOCK // descriptor.vocab)
    own = [name for name, spec in operands_of(descriptor).items() if spec.shape[0].name == "total_num_rows"]
    for first in range(0, rows, step):
        yield replace(args, **{name: getattr(args, name)[first : min(rows, first + step)] for name in own})


def _logits(descriptor: SampleDescriptor, args: SamplingCall) -> Tensor:
    """The logits of some rows; an invalid index reads row 0."""
    logits: Tensor = args.logits
    if not descriptor.indices:
        return logits
    at = args.indices.long()
    return logits[at.masked_fill((at < 0) | (at >= logits.shape[0]), 0)]


def _sample(descriptor: SampleDescriptor, args: SamplingCall) -> None:
    a = heated(adjusted(descriptor, args, _logits(descriptor, args)), args.temperature)
    rows = Ordered.of(a)
    kept, place = kept_counts(descriptor, args, rows), _race(descriptor, args, rows)
    import torch

    inside = torch.arange(a.shape[1], device=a.device) < kept[:, None]
    first = place.masked_fill(~inside, -torch.inf).argmax(-1, keepdim=True)
    none = rows.count == 0
    args.token.copy_(rows.ids.gather(1, first)[:, 0].masked_fill(none, -1))
    args.valid.copy_(~none)
    if descriptor.report != "none":
        _report(descriptor, args, rows, first, none)
    if descriptor.probs_out == "filtered":
        args.probs.copy_(shares(rows, inside))


def shares(rows: Ordered, inside: Tensor) -> Tensor:
    """Probabilities of the kept tokens, f64 [rows, vocab], indexed by token."""
    import torch

    mass = (-rows.below).exp2().masked_fill(~inside, 0)
    return torch.zeros_like(mass).scatter_(1, rows.ids, mass / mass.sum(-1, keepdim=True).clamp(min=1))


def _race(descriptor: SampleDescriptor, args: SamplingCall, rows: Ordered) -> Tensor:
    """Random keys in sorted order; a row with temperature 0 keeps its order."""
    import torch

    noise = minus_log2_exponential(words(args.seed, args.offset, descriptor.stream, descriptor.vocab))
    keys = rows.a.double() * LOG2_E + noise.gather(1, rows.ids)
    if args.temperature is None:
        return keys
    falling = -torch.arange(rows.a.shape[1], dtype=torch.float64, device=rows.a.device)
    return torch.where((args.temperature > 0)[:, None], keys, falling)


def _report(descriptor: SampleDescriptor, args: SamplingCall, rows: Ordered, first: Tensor, none: Tensor) -> None:
    import torch

    total = (rows.masses.sum(-1, keepdim=True).double() / UNIT).log()
    logprobs = torch.where(rows.a > -torch.inf, rows.a.double() - rows.a[:, :1].double() - total, -torch.inf)
    args.logprob.copy_(logprobs.gather(1, first)[:, 0].masked_fill(none, torch.nan))
    args.rank.copy_(first[:, 0].masked_fill(none, -1))
    if descriptor.report == "top_n":
        count = min(descriptor.top_n, descriptor.vocab)
        args.top_tokens.fill_(-1)
        args.top_logprobs.fill_(-torch.inf)
        args.top_tokens[:, :count] = rows.ids[:, :count].masked_fill(rows.a[:, :count] == -torch.inf, -1).int()
        args.top_logprobs[:, :count] = logprobs[:, :count].float()
