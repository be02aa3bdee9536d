"""Radii after arithmetic and functions, without the rounding of the step itself: see `programs.bound`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from opfacade.programs import reals
from opfacade.programs.ball import Ball, aligned
from opfacade.programs.ulps import LGAMMA_OUTSIDE

if TYPE_CHECKING:
    from torch import Tensor

INF = math.inf
LGAMMA_MINIMUM = (1.4616321449683623, -0.12148629053584962)  # argument and value, rounded down


def _add(a: Ball, b: Ball) -> Ball:
    return Ball(a.v + b.v, a.r + b.r)


def _sub(a: Ball, b: Ball) -> Ball:
    return Ball(a.v - b.v, a.r + b.r)


def _mul(a: Ball, b: Ball) -> Ball:
    return Ball(a.v * b.v, _product(a.v.abs(), b.r) + _product(b.v.abs(), a.r) + _product(a.r, b.r))


def _product(size: Tensor, radius: Tensor) -> Tensor:
    """size * radius, with 0 * infinity = 0."""
    return (size * radius).masked_fill((radius == 0) | (size == 0), 0.0)


def _div(a: Ball, b: Ball) -> Ball:
    """There is no bound if the divisor may be 0."""
    v, least = a.v / b.v, b.v.abs() - b.r
    r = ((a.r + v.abs() * b.r) / least).masked_fill(least <= 0, INF)
    return Ball(v, r.masked_fill((a.r == 0) & (b.r == 0), 0.0))


def _neg(a: Ball) -> Ball:
    return Ball(-a.v, a.r)


def _abs(a: Ball) -> Ball:
    return Ball(a.v.abs(), a.r)


def _picked(op: str) -> Callable[[Ball, Ball], Ball]:
    def step(a: Ball, b: Ball) -> Ball:
        import torch

        return Ball(reals.OPERATIONS[op](a.v, b.v), torch.maximum(a.r, b.r))

    return step


def _sqrt(a: Ball) -> Ball:
    import torch

    v, low = a.v.sqrt(), (a.v - a.r).clamp(min=0.0).sqrt()
    high = torch.where(a.v < a.r, a.r.new_tensor(INF), (a.v + a.r).sqrt() - v)  # NaN below 0
    return Ball(v, torch.maximum(v - low, high).masked_fill(a.r == 0, 0.0))


ARITHMETIC: dict[str, Callable[..., Ball]] = {
    "add": _add, "sub": _sub, "mul": _mul, "div": _div, "neg": _neg, "abs": _abs, "sqrt": _sqrt,
    **{op: _picked(op) for op in ("min", "max", "minimum", "maximum", "fmin", "fmax")},
}  # fmt: skip


def _monotone(name: str, low: float = -INF, high: float = INF) -> Callable[[Tensor, Ball], Tensor]:
    """The radius of a function that is monotone between `low` and `high` and has no finite value outside."""

    def radius(v: Tensor, a: Ball) -> Tensor:
        import torch

        function = reals.OPERATIONS[name]
        ends = [(function(a.v + sign * a.r) - v).abs() for sign in (-1, 1)]
        outside = (a.v - a.r <= low) | (a.v + a.r >= high)
        r = torch.maximum(*ends).nan_to_num(INF, INF).masked_fill(outside, INF)
        return r.masked_fill(a.r == 0, 0.0)

    return radius


def _lipschitz(v: Tensor, a: Ball) -> Tensor:
    return a.r.clamp(max=2.0)


def _tan(v: Tensor, a: Ball) -> Tensor:
    """Uses the slope at the end of the interval nearer to the pole, where it is largest."""
    to_pole = (math.pi / 2 - (a.v - math.pi * (a.v / math.pi).round()).abs()) - a.r
    return (a.r / to_pole.clamp(min=1e-300).sin().square()).masked_fill(to_pole <= 0, INF).masked_fill(a.r == 0, 0.0)


def _even(name: str) -> Callable[[Tensor, Ball], Tensor]:
    """The radius of an even function that increases for positive arguments."""

    def radius(v: Tensor, a: Ball) -> Tensor:
        import torch

        size, function = a.v.abs(), reals.OPERATIONS[name]
        far, near = function(size + a.r) - v, v - function((size - a.r).clamp(min=0.0))
        return torch.maximum(far, near).nan_to_num(INF, INF).masked_fill(a.r == 0, 0.0)

    return radius


def _wave(order: int) -> Callable[[Tensor, Ball], Tensor]:
    """The radius of bessel_y: its slope is at most the amplitude hypot(J, Y), which is largest at the end nearer to 0."""

    def radius(v: Tensor, a: Ball) -> Tensor:
        import torch

        least = a.v - a.r
        sizes = [torch.hypot(*(reals.OPERATIONS[f"bessel_{kind}{i}"](least) for kind in "jy")) for i in (0, 1)]
        slope = sizes[1] if order == 0 else sizes[0] + sizes[1] / least
        return (a.r * slope).nan_to_num(INF, INF).masked_fill(least <= 0, INF).masked_fill(a.r == 0, 0.0)

    return radius


def _tanh(v: Tensor, a: Ball) -> Tensor:
    """Uses the slope at the point of the interval nearest to 0, where it is largest."""
    nearest = (a.v.abs() - a.r).clamp(min=0.0)
    return (a.r * (1 - nearest.tanh() ** 2)).clamp(max=2.0)


def _exp(base: float) -> Callable[[Tensor, Ball], Tensor]:
    def radius(v: Tensor, a: Ball) -> Tensor:
        return (v * (a.r * math.log(base)).expm1()).masked_fill(a.r == 0, 0.0)

    return radius


def _erfc(v: Tensor, a: Ball) -> Tensor:
    return (reals.OPERATIONS["erfc"](a.v - a.r) - v).masked_fill(a.r == 0, 0.0)


def unknown(op: str, type: str, v: Tensor) -> Tensor | None:
    """True for arguments v at which the function has no known error bound; None: there are none."""
    if op != "lgamma":
        return None
    least, most = LGAMMA_OUTSIDE[type]
    return (v > least) & (v < most)


def _lgamma(v: Tensor, a: Ball) -> Tensor:
    """Convex above 0, so the largest error is at an end of the interval or at the minimum of lgamma."""
    import torch

    at, minimum = LGAMMA_MINIMUM
    ends = _monotone("lgamma", low=0.0)(v, a)
    return torch.where((a.v - at).abs() < a.r, torch.maximum(ends, v - minimum), ends)


def _pow(v: Tensor, a: Ball, b: Ball) -> Tensor:
    """The power of a positive base is monotone in each argument."""
    import torch

    ends = [((a.v + i * a.r).pow(b.v + j * b.r) - v).abs() for i in (-1, 1) for j in (-1, 1)]
    r = torch.stack(aligned(*ends)).amax(0).nan_to_num(INF, INF).masked_fill(a.v - a.r <= 0, INF)
    return r.masked_fill((a.r == 0) & (b.r == 0), 0.0)


def _atan2(v: Tensor, y: Ball, x: Ball) -> Tensor:
    """The angle of the error disc seen from the origin; a full turn if the disc crosses the branch cut."""
    import torch

    far, error = torch.hypot(x.v, y.v), torch.hypot(x.r, y.r)
    cut = (x.v - x.r < 0) & (y.v.abs() <= y.r) & (error > 0)
    r = (math.pi / 2 * error / far).masked_fill(error >= far, 2 * math.pi).masked_fill(cut, 2 * math.pi)
    return r.masked_fill(error == 0, 0.0)


def _hypot(v: Tensor, a: Ball, b: Ball) -> Tensor:
    return a.r + b.r


FUNCTION_RADIUS: dict[str, Callable[..., Tensor]] = {
    "exp": _exp(math.e), "exp2": _exp(2.0), "tanh": _tanh, "sin": _lipschitz, "cos": _lipschitz, "tan": _tan,
    "cosh": _even("cosh"), "bessel_i0": _even("bessel_i0"),
    "erfc": _erfc, "lgamma": _lgamma, "pow": _pow, "atan2": _atan2, "hypot": _hypot,
    **{name: _monotone(name) for name in ("expm1", "sinh", "asinh", "atan", "erf", "cbrt")},
    **{name: _monotone(name, low=0.0) for name in ("log", "log2", "log10", "rsqrt")},
    **{name: _monotone(name) for name in ("erfcx", "bessel_i1")},
    "bessel_j0": _lipschitz, "bessel_j1": _lipschitz, "bessel_y0": _wave(0), "bessel_y1": _wave(1),
    "erfinv": _monotone("erfinv", low=-1.0, high=1.0), "ndtri": _monotone("ndtri", low=0.0, high=1.0),
    "log1p": _monotone("log1p", low=-1.0), "acosh": _monotone("acosh", low=1.0),
    **{name: _monotone(name, low=-1.0, high=1.0) for name in ("asin", "acos", "atanh")},
}  # fmt: skip
