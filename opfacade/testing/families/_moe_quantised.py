"""Rows and weights of experts in f8_e4m3, as the real numbers that they represent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opfacade.plans._matmul.scaling import BLOCK
from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor
from opfacade.programs.ball import Ball

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST, _LEAST = 448.0, 1e-10
_HALF, _SMALLEST = 2.0**-4, 2.0**-10  # half a unit in the last place with 3 mantissa bits, and half of the smallest number


def stored(x: Ball, scaling: str) -> Ball:
    """Quantised rows. Exact rows are computed as in a kernel, whose divisions are correctly rounded; for inexact rows, the
    error is half a unit in the last place of the largest possible number."""
    most = _largest(x.v.abs() + x.r, scaling)
    if bool((x.r == 0).all()):
        scale = most.float() / _LARGEST
        return Ball(_rounded(x.v.float() / scale) * scale.double(), x.r)
    scale = most / _LARGEST * (1 + 2.0**-22)
    return Ball(x.v, x.r * (1 + _HALF) + _HALF * (1 + 2.0**-20) * x.v.abs() + _SMALLEST * scale)


def _rounded(x: Tensor) -> Tensor:
    """Rounds to f8_e4m3 and converts back to f64."""
    import torch

    return x.clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn).double()


def _largest(sizes: Tensor, scaling: str) -> Tensor:
    """For each element, the largest element that shares its scale."""
    if scaling == "token":
        return sizes.amax(-1, keepdim=True).clamp(min=_LEAST).expand(sizes.shape)
    parts = sizes.reshape(*sizes.shape[:-1], -1, BLOCK).amax(-1).clamp(min=_LEAST)
    found: Tensor = parts.repeat_interleave(BLOCK, -1)
    return found


def weight_of(problem: MatmulDescriptor, weight: Tensor, scale: Tensor) -> Tensor:
    """The weight [.., n, k] or [.., k, n] of one expert times its scales, in f64."""
    found = weight.double() if problem.weight_layout == "nk" else weight.double().mT
    if scale.ndim == 1:
        found = found * scale.double()[:, None]
    else:
        of_n = scale.double().repeat_interleave(BLOCK, 0)[: found.shape[0]]
        found = found * of_n.repeat_interleave(BLOCK, 1)[:, : found.shape[1]]
    return found if problem.weight_layout == "nk" else found.mT


def unscaled(problem: MatmulDescriptor, x: Tensor, weight: Tensor) -> MatmulArgs:
    """A call whose numbers are already multiplied by their scales, and whose scales are all 1."""
    import torch

    n, k = problem.n * problem.columns, problem.k
    if problem.scaling is None:
        return MatmulArgs(x=x, weight=weight)
    if problem.scaling.kind == "token":
        shapes: tuple[tuple[int, ...], tuple[int, ...]] = (x.shape[:1], (n,))
    else:
        shapes = (x.shape[0], -(-k // BLOCK)), (-(-n // BLOCK), -(-k // BLOCK))
    ones = [torch.ones(shape, dtype=torch.float64, device=x.device) for shape in shapes]
    return MatmulArgs(x=x, weight=weight, x_scale=ones[0], weight_scale=ones[1])
