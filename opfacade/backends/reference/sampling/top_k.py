"""Top-k in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opfacade.plans._sampling.call import SamplingCall
    from opfacade.plans.sampling import TopKDescriptor


def top_k(descriptor: TopKDescriptor, args: SamplingCall) -> None:
    import torch

    rows = descriptor.total_num_rows
    counted = int(args.num_valid[0]) if descriptor.num_valid else rows
    count = counted if 0 <= counted <= rows else 0
    x, k = args.x[:count], min(descriptor.k, descriptor.vocab)
    out = x.isnan()
    if descriptor.windows:
        at = torch.arange(descriptor.vocab, device=x.device)
        out |= (at < args.starts[:count, None]) | (at >= args.ends[:count, None])
    found, at = x.masked_fill(out, -torch.inf).sort(dim=-1, descending=True, stable=True)
    found, at = found[:, :k], at[:, :k]
    args.values[:count], args.positions[:count] = -torch.inf, -1
    args.values[:count, :k], args.positions[:count, :k] = found, at.masked_fill(found == -torch.inf, -1).int()
