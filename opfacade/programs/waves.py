"""The Bessel functions of the first and the second kind, of order 0 and 1, in f64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# From here on, a few terms of the asymptotic series suffice; below, a few points of the trapezoidal rule. torch's functions are
# inexact.
FAR = 25.0
_ANGLES = 32  # points per quarter turn; the error of the rule is bessel_j128
_EULER = 0.5772156649015329


def wave(kind: str, order: int) -> Callable[[Tensor], Tensor]:
    """bessel_j or bessel_y in f64, with an absolute error of a few 2^-53."""

    def call(a: Tensor) -> Tensor:
        import torch

        x = a.abs().double()
        found = torch.where(x >= FAR, _far_wave(kind, order, x.clamp(min=FAR)), _near_wave(kind, order, x.clamp(max=FAR)))
        if kind == "j":
            found = torch.copysign(found, found * a.sign()) if order == 1 else found
        else:
            found = torch.where(a < 0, torch.full_like(x, math.nan), found)
        return torch.where(a.isnan(), a, found.to(a.dtype))

    return call


def _near_wave(kind: str, order: int, x: Tensor) -> Tensor:
    """bessel_j as the mean of cos(x sin t), and order 1 as its negative derivative; bessel_y by Neumann's series of these."""
    import torch

    mean, rest, slope, rest_slope = (torch.zeros_like(x) for _ in range(4))
    for i in range(_ANGLES):
        angle = (i + 0.5) * math.pi / 2 / _ANGLES
        weight = sum((-1) ** k * math.cos(2 * k * angle) / k for k in range(1, 41))
        sine = math.sin(angle)
        even, odd = (x * sine).cos() / _ANGLES, (x * sine).sin() * (sine / _ANGLES)
        mean, rest, slope, rest_slope = mean + even, rest + even * weight, slope + odd, rest_slope + odd * weight
    if kind == "j":
        return slope if order else mean
    grown = (x / 2).log() + _EULER
    if order == 0:
        return (grown * mean - 2 * rest) * (2 / math.pi)
    found = (grown * slope - mean / x - 2 * rest_slope) * (2 / math.pi)
    return found.masked_fill(x == 0, -math.inf)


def _far_wave(kind: str, order: int, x: Tensor) -> Tensor:
    """Hankel's series at the angle x - (2 order + 1) pi / 4, whose sine and cosine are computed from those of x."""
    import torch

    even, odd = _hankel(x, order)
    sin, cos = x.sin(), x.cos()
    c, s = (cos + sin, sin - cos) if order == 0 else (sin - cos, -(cos + sin))  # times the square root of 2
    found = even * c - odd * s if kind == "j" else even * s + odd * c
    return torch.where(x.isinf(), torch.zeros_like(x), found / (math.pi * x).sqrt())


def _hankel(x: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """The even and the odd terms, whose signs alternate."""
    import torch

    sides, term = [torch.zeros_like(x), torch.zeros_like(x)], torch.ones_like(x)
    for k in range(24):
        sides[k % 2] = sides[k % 2] + (term if k % 4 < 2 else -term)
        term = term * ((4 * order * order - (2 * k + 1) ** 2) / (8 * (k + 1))) / x
    return sides[0], sides[1]
