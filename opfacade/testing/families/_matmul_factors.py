"""Non-finite scales: they multiply sums of products, not the products."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from opfacade.testing.families._matmul_weights import weight_of

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor

# relative to the sizes in a part of k: tensor cores lose 34 * 2^-13 of the largest product in each of 4 steps
_NEAR_OF_PART = 0.02
_NEAR = 1e-3  # relative to the sizes in a sum of a group: if a sum is nearer to 0, a machine may compute it with the other sign


@dataclass(frozen=True)
class Factors:
    """Non-finite scales. columns: [.., 1, n], scales of whole sums, with 1 for finite ones; None: all are finite. groups:
    scales of the sums of groups, each with the elements of k in its group. lost: [.., 1, n], whether the sums of a column are
    infinite or NaN, because a scale of the column is and may multiply numbers or sums."""

    columns: Tensor | None
    groups: tuple[tuple[list[int], Tensor], ...] = ()
    lost: Tensor | None = None

    def of(self, value: Tensor, *radii: Tensor) -> tuple[Tensor, ...]:
        """Whole sums multiplied by their scales, with radii; a radius is infinite if the sign of its sum is not certain."""
        import torch

        if self.columns is None:
            return (value, *radii)
        factor = self.columns.expand(value.shape)
        found = []
        for radius in radii:
            unknown = factor.isinf() & (value.abs() <= radius) & (radius > 0)
            found.append(torch.where(factor.isfinite(), radius * factor.abs(), 0.0).masked_fill(unknown, torch.inf))
        return (value * factor, *found)


class Parts(NamedTuple):
    """The sums of those parts of k whose scales are not finite, multiplied by the scales, and a mask of the elements for which
    the sign of such a sum is not certain. Both are [.., rows, n]."""

    value: Tensor
    unknown: Tensor


def scaled(x: Tensor, w: Tensor, of_x: Tensor, of_w: Tensor) -> tuple[Tensor, Tensor, Parts | None]:
    """x [.., rows, k] and w [.., k, n] multiplied by their scales, which have the same shapes; the result is 0 where a scale is
    not finite. A scale is a factor of the sum of its part of k: an infinite scale turns a sum of 0 into NaN, and any other
    sum into infinity."""
    import torch

    finite_x, finite_w = of_x.isfinite(), of_w.isfinite()
    products = (x * of_x).masked_fill(~finite_x, 0.0), (w * of_w).masked_fill(~finite_w, 0.0)
    if bool(finite_x.all()) and bool(finite_w.all()):
        return *products, None
    value, unknown = x.new_zeros(()), torch.zeros((), dtype=torch.bool, device=x.device)
    for first, stop in _ranges(of_x, of_w):
        left, right = x[..., first:stop], w[..., first:stop, :]
        sums, size = left @ right, left.abs() @ right.abs()
        scale = of_x[..., first, None] * of_w[..., first, None, :]
        hit = ~(finite_x[..., first, None] & finite_w[..., first, None, :])
        value = value + torch.where(hit, sums * scale, 0.0)
        unknown = unknown | (hit & scale.isinf() & (size > 0) & (sums.abs() <= _NEAR_OF_PART * size))
    return *products, Parts(value, unknown)


def _ranges(of_x: Tensor, of_w: Tensor) -> list[tuple[int, int]]:
    """Ranges of k with the same scales."""
    k = of_x.shape[-1]
    ends = [0, k]
    for scales, axis in ((of_x, -1), (of_w, -2)):
        numbers = scales.nan_to_num(-1.0, -2.0, -3.0)  # NaN is replaced by a number, because NaN is not equal to itself
        change = numbers.diff(dim=axis).ne(0).movedim(axis, 0).flatten(1).any(1)
        ends += (change.nonzero().flatten() + 1).tolist()
    return list(pairwise(sorted(set(ends))))


def apart(problem: MatmulDescriptor, args: MatmulArgs) -> tuple[MatmulArgs, Factors]:
    """Splits the scales of a call: returns the call with only its finite scales, and the non-finite scales. In scales of
    groups, 0 replaces the non-finite ones."""
    import torch

    weight, scale, whole = problem.weight_format, args.weight_scale, args.weight_global
    assert weight is not None
    assert scale is not None
    columns, wide = None, scale.double()
    if weight.scales_columns and not bool(wide.isfinite().all()):
        columns = wide[..., 0].masked_fill(wide[..., 0].isfinite(), 1.0).unsqueeze(-2)
        args = replace(args, weight_scale=wide.masked_fill(~wide.isfinite(), 1.0))
    if weight.scales_all and whole is not None and not bool(whole.isfinite().all()):
        columns = whole.double().view(1, 1) * (1.0 if columns is None else columns)
        args = replace(args, weight_global=torch.ones_like(whole))
    if weight.scales_either(problem.dtype) and not bool(wide.isfinite().all()):
        lost = ~wide.isfinite().all(-1).unsqueeze(-2)
        return replace(args, weight_scale=wide.masked_fill(~wide.isfinite(), 1.0)), Factors(columns, lost=lost)
    if not weight.scales_groups(problem.dtype) or bool(wide.isfinite().all()):
        return args, Factors(columns)
    groups = []
    for group in range(wide.shape[-1]):
        of_group = [j for j in range(problem.k) if _group(problem, args, j) == group]
        if not bool(wide[..., group].isfinite().all()):
            groups.append((of_group, wide[..., group]))
    return replace(args, weight_scale=wide.masked_fill(~wide.isfinite(), 0.0)), Factors(columns, tuple(groups))


def _group(problem: MatmulDescriptor, args: MatmulArgs, j: int) -> int:
    weight = problem.weight_format
    assert weight is not None
    if args.weight_groups is not None:
        return int(args.weight_groups[j])
    return (j + weight.group_offset) // weight.group if weight.group else 0


def added(problem: MatmulDescriptor, args: MatmulArgs, found: Factors, x: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Adds the sums of groups with non-finite scales, and also returns a mask of the sums whose sign is not certain."""
    import torch

    unknown = torch.zeros_like(value, dtype=torch.bool)
    if not found.groups:
        return value, unknown
    assert args.weight_scale is not None
    codes, _ = weight_of(problem, replace(args, weight_scale=torch.ones_like(args.weight_scale)))
    for of_group, scale in found.groups:
        mine, theirs = x[..., of_group], codes[..., of_group, :]
        part, size = mine @ theirs, mine.abs() @ theirs.abs()
        factor = scale.masked_fill(scale.isfinite(), 0.0).unsqueeze(-2).expand(part.shape)
        value = value + torch.where(factor == 0, 0.0, part * factor)
        unknown = unknown | (factor.isinf() & (part.abs() <= _NEAR * size) & (size > 0))
    return value, unknown
