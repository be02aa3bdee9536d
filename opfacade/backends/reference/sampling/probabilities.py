"""Filtered distributions and adjusted logits in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opfacade.backends.reference.sampling.adjust import LARGEST, adjusted, heated
from opfacade.backends.reference.sampling.kept import Ordered, kept_counts
from opfacade.backends.reference.sampling.sample import blocks, shares
from opfacade.plans.sampling import AdjustLogitsDescriptor, ProbabilitiesDescriptor

if TYPE_CHECKING:
    from opfacade.plans._sampling.adjust import AdjustLogitsArgs
    from opfacade.plans._sampling.call import SamplingCall
    from opfacade.plans._sampling.probabilities import ProbabilitiesArgs


def probabilities(descriptor: ProbabilitiesDescriptor, args: ProbabilitiesArgs) -> None:
    for part in blocks(descriptor, args):
        _probabilities(descriptor, part)


def _probabilities(descriptor: ProbabilitiesDescriptor, args: SamplingCall) -> None:
    import torch

    x = args.x.float()
    if descriptor.form == "renorm":
        rows = Ordered.of_shares(x)
    else:
        a = torch.where(x > -torch.inf, x, -torch.inf)
        rows = Ordered.of(heated(torch.where(a > -torch.inf, a.clamp(-LARGEST, LARGEST) + 0.0, a), args.temperature))
    inside = torch.arange(x.shape[1], device=x.device) < kept_counts(descriptor, args, rows)[:, None]
    if descriptor.form == "mask":
        keeps = torch.zeros_like(inside).scatter_(1, rows.ids, inside)
        args.masked.copy_(torch.where(keeps, args.x, -torch.inf))
        return
    args.out.copy_(shares(rows, inside))


def adjust(descriptor: AdjustLogitsDescriptor, args: AdjustLogitsArgs) -> None:
    for part in blocks(descriptor, args):
        part.logits.copy_(heated(adjusted(descriptor, part, part.logits), part.temperature))
