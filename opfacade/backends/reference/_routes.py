"""Keys, groups and choices of a router, for the rows of a matrix."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.plans._moe.route import RouteArgs, RouteDescriptor


def scores_of(d: RouteDescriptor, z: Tensor) -> Tensor:
    """The score of each expert."""
    import torch

    if d.score in ("softmax", "softmax_chosen"):
        return z.softmax(1)
    return z.sigmoid() if d.score == "sigmoid" else torch.nn.functional.softplus(z, threshold=40.0).sqrt()


def top_experts(d: RouteDescriptor, z: Tensor, correction: Tensor | None) -> Tensor:
    """The experts of each row, best first."""
    key = z if d.by_logits else scores_of(d, z)
    key = key if correction is None else key + correction.double()
    out = _outside(d, key) if d.groups > 1 else key.isnan() & False
    found: Tensor = _ranked(key, out)[:, : d.top_k]
    return found


def _outside(d: RouteDescriptor, key: Tensor) -> Tensor:
    """True for each expert whose group is not among the best."""
    import torch

    by_group = key.view(len(key), d.groups, d.experts // d.groups)
    best = by_group.flatten(0, 1).gather(1, _ranked(by_group.flatten(0, 1))[:, : 2 if d.group_score == "top2" else 1])
    kept = _ranked(best.sum(1).view(len(key), d.groups))[:, : d.top_groups]
    out = torch.ones(len(key), d.groups, dtype=torch.bool, device=key.device).scatter(1, kept, False)
    return out[:, :, None].expand(by_group.shape).flatten(1)


def _ranked(key: Tensor, out: Tensor | None = None) -> Tensor:
    """Indices in order of decreasing key, equal keys by increasing index; NaN comes after numbers, and excluded experts come
    last."""
    order = key.masked_fill(key.isnan(), -math.inf).argsort(dim=1, descending=True, stable=True)
    last = key.isnan().long() if out is None else key.isnan().long() + 2 * out.long()
    return order.gather(1, last.gather(1, order).argsort(dim=1, stable=True))


def loads_of(d: RouteDescriptor, ids: Tensor) -> Tensor:
    import torch

    return torch.bincount(ids.flatten(), minlength=d.experts)


def physical(d: RouteDescriptor, args: RouteArgs, ids: Tensor) -> Tensor:
    """The physical id of each chosen expert: its replica for this row. A replica count out of range counts as one."""
    import torch

    counts = args.num_replicas.long()
    counts = torch.where((counts >= 1) & (counts <= d.most_replicas), counts, 1)
    turn = torch.arange(len(ids), device=ids.device)[:, None] % counts[ids]
    found: Tensor = args.replicas[ids, turn]
    return found
