"""The functions of f64 in mpmath, and the distribution of their arguments: in their ranges, near zeros, poles and ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import mpmath

DIGITS = 60
TINY, UNIT = mpmath.mpf(2) ** -1074, mpmath.mpf(2) ** -52
MOST = mpmath.ldexp(2**54 - 1, 970)  # from here on the nearest f64 is infinite


class Range(NamedTuple):
    """The range of most arguments, the ends of the domain, and the points near which arguments are dense."""

    low: float
    high: float
    points: tuple[float, ...] = (0.0,)
    least: float = float("-inf")
    most: float = float("inf")


TURN = 1.5707963267948966
TURNS = (*(k * TURN for k in range(-9, 10)), 1e5 * TURN, 1e22, -3.3e16, 2.0**60, 5.319372648326541e255)
RANGES: dict[str, Range] = {
    "exp": Range(-745.2, 709.79, (0.0, 709.782712893384, -708.3964185322641, -745.1332191019411)),
    "exp2": Range(-1075, 1024, (0.0, 1024.0, -1022.0, -1074.0)),
    "expm1": Range(-40, 709.79, (0.0, 709.782712893384, -37.42994775023705)),
    "log": Range(0, 4, (0.0, 1.0), 0.0), "log2": Range(0, 4, (0.0, 1.0), 0.0), "log10": Range(0, 4, (0.0, 1.0), 0.0),
    "log1p": Range(-1, 4, (0.0, -1.0), -1.0),
    "sin": Range(-1e4, 1e4, TURNS), "cos": Range(-1e4, 1e4, TURNS), "tan": Range(-1e4, 1e4, TURNS),
    "asin": Range(-1, 1, (0.0, 1.0, -1.0, 0.5, -0.5), -1.0, 1.0), "acos": Range(-1, 1, (0.0, 1.0, -1.0, 0.5, -0.5), -1.0, 1.0),
    "atan": Range(-10, 10, (0.0, 1.0, -1.0)), "sinh": Range(-710.5, 710.5, (0.0, 710.4758600739439, -710.4758600739439)),
    "cosh": Range(-710.5, 710.5, (0.0, 710.4758600739439)), "tanh": Range(-20, 20), "asinh": Range(-10, 10),
    "acosh": Range(1, 10, (1.0,), 1.0), "atanh": Range(-1, 1, (0.0, 1.0, -1.0), -1.0, 1.0), "erf": Range(-6, 6),
    "erfc": Range(-6, 27.3, (0.0, 26.5432, 27.2263)), "rsqrt": Range(0, 4, (0.0, 1.0), 0.0), "cbrt": Range(-10, 10, (0.0, 1.0)),
    "lgamma": Range(-40, 40, (0.0, 1.0, 2.0, *(-float(k) for k in range(1, 31)), 2.55e305)),
    "pow": Range(0, 4, (0.0, 1.0), 0.0), "atan2": Range(-10, 10, (0.0, 1.0)), "hypot": Range(-10, 10),
    "erfinv": Range(-1, 1, (0.0, 1.0, -1.0), -1.0, 1.0), "erfcx": Range(-26.7, 100, (0.0, -26.6287, 10.0)),
    "ndtri": Range(0, 1, (0.0, 0.5, 1.0), 0.0, 1.0), "bessel_i0": Range(-713.9, 713.9, (0.0, 713.986)),
    "bessel_i1": Range(-713.9, 713.9, (0.0, 713.986)),
    "bessel_j0": Range(-50, 50, (0.0, 2.404825557695773, 5.520078110286311, 8.653727912911013)),
    "bessel_j1": Range(-50, 50, (0.0, 3.831705970207512, 7.015586669815619)),
    "bessel_y0": Range(0, 50, (0.0, 0.8935769662791675, 3.957678419314858), 0.0),
    "bessel_y1": Range(0, 50, (0.0, 2.197141326031017, 5.429681040794135), 0.0),
}  # fmt: skip


def _log_tail(p: Any) -> Any:
    """x with erfc(x) = p, for small p: Newton on the logarithm."""
    x = mpmath.sqrt(-mpmath.log(p))
    for _ in range(100):
        tail = mpmath.erfc(x)
        step = (mpmath.log(tail) - mpmath.log(p)) * tail * mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(x * x)
        x += step
        if abs(step) < mpmath.mpf(10) ** (8 - DIGITS) * x:
            return x
    return x


def _erfinv(a: Any) -> Any:
    if abs(a) == 1:
        return a * mpmath.inf
    return mpmath.erfinv(a) if abs(a) < 0.9 else mpmath.sign(a) * _log_tail(1 - abs(a))


def _ndtri(p: Any) -> Any:
    if p in (0, 1):
        return (2 * p - 1) * mpmath.inf
    return -mpmath.sqrt(2) * _log_tail(2 * p) if p < 0.05 else mpmath.sqrt(2) * _erfinv(2 * p - 1)


def _lgamma(a: Any) -> Any:
    if a <= 0 and a == mpmath.floor(a):
        return mpmath.inf
    return mpmath.loggamma(a) if a > 0 else mpmath.log(mpmath.pi / abs(mpmath.sinpi(a))) - mpmath.loggamma(1 - a)


_FAR = 1e8  # mpmath cannot compute erfc of much larger arguments


def _erfc(a: Any) -> Any:
    """Returns a tiny number for large arguments, below every f64."""
    return mpmath.erfc(a) if a < _FAR else TINY * TINY


def _erfcx(a: Any) -> Any:
    """For large arguments, the first two terms of the series in 1 / a^2; the third is 10^-32 of their sum."""
    if a < _FAR:
        return mpmath.exp(a * a) * mpmath.erfc(a)
    return (1 - 1 / (2 * a * a)) / (a * mpmath.sqrt(mpmath.pi))


REAL: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(mpmath, name)
        for name in (
            "exp", "expm1", "log", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
            "asinh", "acosh", "atanh", "erf", "atan2", "hypot",
        )
    },
    "exp2": lambda a: mpmath.mpf(2) ** a,
    "log2": lambda a: mpmath.log(a) / mpmath.log(2),
    "rsqrt": lambda a: 1 / mpmath.sqrt(a),
    "cbrt": lambda a: mpmath.sign(a) * mpmath.cbrt(abs(a)),
    "lgamma": _lgamma,
    "pow": mpmath.power,
    "erfinv": _erfinv,
    "erfc": _erfc,
    "erfcx": _erfcx,
    "ndtri": _ndtri,
    **{f"bessel_{kind}{order}": partial(getattr(mpmath, f"bessel{kind}"), order) for kind in "ijy" for order in (0, 1)},
}  # fmt: skip


def units(name: str, given: tuple[float, ...], got: float, absolute: float) -> float:
    """The error of one result in units of 2^-52 of the value, after subtracting the smallest subnormal and the allowed absolute
    error. If the value exceeds the largest f64, any large result is accepted."""
    with mpmath.workdps(DIGITS):
        want = REAL[name](*map(mpmath.mpf, given))
        if abs(want) >= MOST:
            return 0.0 if abs(got) > 1e308 and (got > 0) == (want > 0) else float("inf")
        if got != got or abs(got) == float("inf"):
            return float("inf")
        apart = abs(mpmath.mpf(got) - want) - TINY - absolute
        return float(apart / (abs(want) * UNIT)) if apart > 0 else 0.0
