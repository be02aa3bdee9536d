"""The kept tokens of each row: a prefix of the order by larger adjusted logit, then lower id."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


LOG2_E = 1 / math.log(2)
UNIT = 2.0**40  # mass of the most likely token


@dataclass(frozen=True)
class Ordered:
    """Sorted rows. ids: token ids. a: adjusted logits. below: distance below the first logit in units of ln 2. masses: int64.
    count: number of candidates."""

    ids: Tensor
    a: Tensor
    below: Tensor
    masses: Tensor
    count: Tensor

    @classmethod
    def of(cls, a: Tensor) -> Ordered:
        import torch

        values, ids = a.sort(dim=-1, descending=True, stable=True)
        b = values.double() * LOG2_E
        below = torch.where(values > -torch.inf, b[:, :1] - b, torch.inf)
        return cls(ids, values, below, (UNIT * (-below).exp2()).round().long(), (values > -torch.inf).sum(-1))

    @classmethod
    def of_shares(cls, shares: Tensor) -> Ordered:
        """shares: probabilities; only tokens with a probability above 0 are candidates."""
        values, ids = _positive(shares).sort(dim=-1, descending=True, stable=True)
        part = values.double() / values[:, :1].double()
        part = part.masked_fill(values <= 0, 0.0)
        return cls(ids, values, -part.log2(), (UNIT * part).round().long(), (values > 0).sum(-1))


def _positive(shares: Tensor) -> Tensor:
    """Replaces values that are not candidates by 0, and infinity by the largest number."""
    import torch

    return torch.where(shares > 0, shares.float(), 0.0).clamp(max=torch.finfo(torch.float32).max)


class Filtering(Protocol):
    """The fields that select filters."""

    @property
    def top_k(self) -> bool: ...
    @property
    def max_top_k(self) -> int | None: ...
    @property
    def top_p(self) -> bool: ...
    @property
    def min_p(self) -> bool: ...
    @property
    def order(self) -> str: ...


class Filters(Protocol):
    """The tensors of filters, without None: the reader knows which of them the descriptor has."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


def kept_counts(descriptor: Filtering, args: Filters, rows: Ordered) -> Tensor:
    """The number of kept candidates per row, int64 [rows]. args: tensors of these rows."""
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
    """The length of the shortest prefix with at least p of the mass of the first `count` candidates; at least 1."""
    import torch

    place = torch.arange(rows.a.shape[1], device=rows.a.device)
    total = rows.masses.masked_fill(place >= count[:, None], 0).sum(-1)
    before = rows.masses.cumsum(-1) - rows.masses
    cut = (total.double() * top_p.double()).ceil().nan_to_num(0, 0, 0).clamp(min=1)
    found = (before < cut.long()[:, None]).sum(-1)
    return torch.where(top_p < 1, found, rows.a.shape[1])


def _by_ratio(rows: Ordered, min_p: Tensor) -> Tensor:
    """The number of candidates with at least min_p of the largest probability; at least 1."""
    import torch

    found = (rows.below <= -min_p.double().clamp(max=1)[:, None].log2()).sum(-1)
    return torch.where(min_p > 0, found, rows.a.shape[1])
