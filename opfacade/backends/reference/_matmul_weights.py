"""The numbers that a weight's codes represent, in f64, and the sums of their products."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opfacade.core.dtypes import DType, torch_dtype
from opfacade.plans._weights.weight import Weight

if TYPE_CHECKING:
    from torch import Tensor

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


class Stored(NamedTuple):
    """The operands of a weight."""

    codes: Tensor
    scale: Tensor
    zero: Tensor | None
    whole: Tensor | None
    groups: Tensor | None


def sums(weight: Weight, stored: Stored, x: Tensor, dtype: DType) -> Tensor:
    """The product [.., rows, n] of x, [.., rows, k] in f64, with the numbers. Scales multiply sums if the format says so."""
    found, scale = _numbers(weight, stored, x.shape[-1], dtype), stored.scale.double()
    if weight.scales_groups(dtype):
        found = _by_groups(weight, stored, x, found)
    else:
        found = x @ found
        found = found * scale[..., 0].unsqueeze(-2) if weight.scales_columns else found
    return found * stored.whole.double() if weight.scales_all and stored.whole is not None else found


def _by_groups(weight: Weight, stored: Stored, x: Tensor, numbers: Tensor) -> Tensor:
    """The sum over groups of each group's sum times its scale."""
    columns, scale = _columns(weight, stored, x.shape[-1]), stored.scale.double()
    total = x.new_zeros((*x.shape[:-1], numbers.shape[-1]))
    for group in range(scale.shape[-1]):
        at = (columns == group).nonzero().flatten()
        total = total + x[..., at] @ numbers[..., at, :] * scale[..., group].unsqueeze(-2)
    return total


def _numbers(weight: Weight, stored: Stored, k: int, dtype: DType) -> Tensor:
    """The numbers [.., k, n] in f64, without the scales that multiply sums; rounded to dtype, the type of x, if the format says
    so."""
    import torch

    kind = torch.float32 if weight.dequantise == "rounded" else torch.float64
    found, column = _codes(weight, stored.codes)[..., :k].to(kind), _columns(weight, stored, k)
    scale = stored.scale.to(kind)[..., column]
    scale = torch.ones_like(scale) if weight.scales_columns or weight.scales_groups(dtype) else scale
    zero = None if stored.zero is None else stored.zero.to(kind)[..., column]
    if zero is not None and weight.zero != "added":
        found = found - zero
    found = found * scale
    if zero is not None and weight.zero == "added":
        found = found + zero
    if stored.whole is not None and not weight.scales_all:
        found = found * stored.whole.to(kind)
    if weight.dequantise == "rounded":
        found = found.to(torch_dtype(dtype))
    made = found.double().transpose(-1, -2)
    return made if stored.groups is None else made.masked_fill(_lost(weight, stored.groups, k)[:, None], 0.0)


def _codes(weight: Weight, stored: Tensor) -> Tensor:
    """The codes [.., n, k], also for an odd k."""
    import torch

    if not weight.packed:
        return stored
    pairs = torch.stack((stored & 15, stored >> 4), -1).flatten(-2).long()
    if weight.dtype == "e2m1":
        return torch.tensor(_E2M1, device=stored.device)[pairs]
    return pairs - 16 * (pairs > 7) if weight.dtype == "int4" else pairs


def _columns(weight: Weight, stored: Stored, k: int) -> Tensor:
    """The group of each element of k."""
    import torch

    if stored.groups is not None:
        return stored.groups.long().clamp(0, weight.groups(k) - 1)
    return (torch.arange(k, device=stored.scale.device) + weight.group_offset) // (weight.group or max(k, 1))


def _lost(weight: Weight, groups: Tensor, k: int) -> Tensor:
    """True for elements of k with an invalid group, which count as 0."""
    return (groups < 0) | (groups >= weight.groups(k))
