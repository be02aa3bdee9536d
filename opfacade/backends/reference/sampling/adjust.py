"""Adjusted logits in float32: every operation is rounded once, in the documented order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opfacade.plans.sampling import AdjustLogitsDescriptor, SampleDescriptor

OfLogits = AdjustLogitsDescriptor | SampleDescriptor

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.plans._sampling.call import SamplingCall

LARGEST = 2.0**127  # maximum magnitude of an adjusted logit; its product with log2(e) is finite


def adjusted(descriptor: OfLogits, args: SamplingCall, logits: Tensor) -> Tensor:
    """Adjusted logits before the temperature, f32 [rows, vocab]; -inf for tokens that are not candidates. args: tensors of
    these rows."""
    import torch

    a = logits.float()
    a = _masked(a, args.bitmask) if descriptor.bitmask else a
    a = a + args.bias if descriptor.bias == "dense" else a
    a = _with_list(a, args) if descriptor.bias == "sparse" else a
    a = _penalized(a, args) if descriptor.penalties else a
    outside = ~(a > -torch.inf)
    a = a.clamp(-LARGEST, LARGEST)
    if descriptor.soft_cap:
        cap = torch.tensor(descriptor.soft_cap, dtype=torch.float32, device=a.device)
        a = (a / cap).tanh() * cap
    return a.masked_fill(outside, -torch.inf) + 0.0  # -0 becomes 0


def heated(a: Tensor, temperature: Tensor | None) -> Tensor:
    """Logits divided by the temperature; a row whose temperature is not above 0 is unchanged."""
    import torch

    if temperature is None:
        return a
    t = torch.where(temperature > 0, temperature, 1.0)[:, None]
    return torch.where(a > -torch.inf, (a / t).clamp(-LARGEST, LARGEST) + 0.0, a)


def _masked(a: Tensor, bitmask: Tensor) -> Tensor:
    import torch

    token = torch.arange(a.shape[1], device=a.device)
    allowed = bitmask.long()[:, token // 32] >> (token % 32) & 1
    return torch.where(allowed.bool(), a, -torch.inf)


def _with_list(a: Tensor, args: SamplingCall) -> Tensor:
    """Adds entries one after the other, because a token may occur twice."""
    import torch

    a, vocab = a.clone(), a.shape[1]
    for tokens, values in zip(args.bias_tokens.long().T, args.bias_values.T, strict=True):
        known = (tokens >= 0) & (tokens < vocab)
        at = torch.where(known, tokens, 0)[:, None]
        old = a.gather(1, at)
        a.scatter_(1, at, torch.where(known[:, None], old + values[:, None], old))
    return a


def _penalized(a: Tensor, args: SamplingCall) -> Tensor:
    import torch

    used = args.output_counts > 0
    r, f, p = (x[:, None] for x in (args.repetition, args.frequency, args.presence))
    a = torch.where(args.prompt_mask | used, torch.where(a > 0, a / r, a * r), a)
    return torch.where(used, a - f * args.output_counts.float() - p, a)
