"""The kept set of each row: a prefix of the order (larger adjusted logit first, then the lower id)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

LOG2_E = 1 / math.log(2)
UNIT = 2.0**40  # mass of the most likely token


@dataclass(frozen=True)
class Ordered:
    """Rows in their order. ids: of tokens; a: adjusted logits; masses: int64; count: candidates of each row."""

    ids: Tensor
    a: Tensor
    masses: Tensor
    count: Tensor

    @classmethod
    def of(cls, a: Tensor) -> Ordered:
        import torch

        values, ids = a.sort(dim=-1, descending=True, stable=True)
        b = values.double() * LOG2_E
        above = torch.where(values > -torch.inf, b - b[:, :1], -torch.inf)
        return cls(ids, values, (UNIT * above.exp2()).round().long(), (values > -torch.inf).sum(-1))


def kept_counts(descriptor: Any, args: Any, rows: Ordered) -> Tensor:
    """int64 [rows]: how many candidates of the order are kept. args: tensors of these rows."""
    vocab = rows.a.shape[1]
    k = rows.count
    if descriptor.top_k:
        top_k = args.top_k.long()
        k = k.minimum(top_k.masked_fill((top_k <= 0) | (top_k >= vocab), vocab))
    if descriptor.max_top_k is not None:
        k = k.clamp(max=descriptor.max_top_k)
    kept = k
    if descriptor.top_p:
        kept = kept.minimum(_by_mass(rows, args.top_p, k if descriptor.order == "top_k_first" else rows.count))
    if descriptor.min_p:
        kept = kept.minimum(_by_ratio(rows, args.min_p))
    return kept


def _by_mass(rows: Ordered, top_p: Tensor, count: Tensor) -> Tensor:
    """The shortest prefix with at least p of the mass of the first `count` candidates; at least one."""
    import torch

    place = torch.arange(rows.a.shape[1], device=rows.a.device)
    total = rows.masses.masked_fill(place >= count[:, None], 0).sum(-1)
    before = rows.masses.cumsum(-1) - rows.masses
    cut = (total.double() * top_p.double()).ceil().nan_to_num(0, 0, 0).clamp(min=1)
    found = (before < cut.long()[:, None]).sum(-1)
    return torch.where(top_p < 1, found, rows.a.shape[1])


def _by_ratio(rows: Ordered, min_p: Tensor) -> Tensor:
    """Candidates with at least min_p of the largest probability; the largest is one."""
    import torch

    b = rows.a.double() * LOG2_E
    found = (b >= b[:, :1] + min_p.double().clamp(max=1)[:, None].log2()).sum(-1)
    return torch.where(min_p > 0, found, rows.a.shape[1])
