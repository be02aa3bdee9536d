"""Float operations in torch, in the dtype of their arguments: f32 or f64. docs/programs.md defines their edge cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from opfacade.programs.ball import aligned
from opfacade.programs.types import LARGEST, LEAST_POWER
from opfacade.programs.waves import wave

if TYPE_CHECKING:
    from torch import Tensor


def _torch(name: str) -> Callable[..., Tensor]:
    def call(*args: Tensor) -> Tensor:
        import torch

        found: Tensor = getattr(torch, name)(*args)
        return found

    return call


def _where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    import torch

    return torch.where(condition, a, b)


def _in_numpy(name: str) -> Callable[..., Tensor]:
    """An operation of numpy in f64: on a CPU, torch's sqrt is not correctly rounded and its fmod is not exact, but numpy's
    are."""

    def call(*args: Tensor) -> Tensor:
        import numpy
        import torch

        wide = [arg.double() for arg in aligned(*args)]
        if wide[0].is_cuda:
            found: Tensor = getattr(torch, name)(*wide)
            return found.to(args[0].dtype)
        with numpy.errstate(all="ignore"):
            return torch.from_numpy(numpy.asarray(getattr(numpy, name)(*(x.numpy() for x in wide)))).to(args[0].dtype)

    return call


def _maximum(a: Tensor, b: Tensor) -> Tensor:
    """NaN if either argument is NaN; +0 is larger than -0."""
    import torch

    return _where((a == 0) & (b == 0), a + b, torch.maximum(a, b))


def _minimum(a: Tensor, b: Tensor) -> Tensor:
    return -_maximum(-a, -b)


def _fmax(a: Tensor, b: Tensor) -> Tensor:
    """The other argument if one is NaN."""
    return _where(a.isnan(), b, _where(b.isnan(), a, _maximum(a, b)))


def _fmin(a: Tensor, b: Tensor) -> Tensor:
    return _where(a.isnan(), b, _where(b.isnan(), a, _minimum(a, b)))


_rem = _in_numpy("fmod")  # exact, with the sign of the first argument


def _mod(a: Tensor, b: Tensor) -> Tensor:
    """rem, plus b if the remainder and b have different signs."""
    rest = _rem(a, b)
    return _where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def _sign(a: Tensor) -> Tensor:
    """The sign; NaN stays NaN, and both zeros give +0."""
    return _where(a.isnan(), a, (a > 0).to(a.dtype) - (a < 0).to(a.dtype))


def _round_away(a: Tensor) -> Tensor:
    """The nearest integer; ties round away from 0. a - trunc(a) is exact."""
    import torch

    whole = a.trunc()
    return _where((a - whole).abs() >= 0.5, torch.copysign(whole.abs() + 1, a), torch.copysign(whole, a))


def _cbrt(a: Tensor) -> Tensor:
    """pow, then one Newton step in f64."""
    import torch

    x = a.double()
    size = x.abs()
    guess = size.pow(1 / 3)
    finer = guess - (guess - size / (guess * guess)) / 3
    return torch.copysign(_where((size == 0) | ~size.isfinite(), size, finer), x).to(a.dtype)


def _lgamma(a: Tensor) -> Tensor:
    """lgamma, which is +inf at the poles, at 0 and at the infinities."""
    import torch

    pole = (a <= 0) & (a == a.floor())
    return torch.lgamma(a).masked_fill(pole | a.isinf(), float("inf"))


def _special(name: str, at_infinity: float | None = None) -> Callable[[Tensor], Tensor]:
    """A function of torch.special. at_infinity: the value at both infinities, with the sign for an odd function; None: torch's
    value."""

    def call(a: Tensor) -> Tensor:
        import torch

        found: Tensor = getattr(torch.special, name)(a.double()).to(a.dtype)
        if at_infinity is None:
            return found
        end = torch.full_like(a, at_infinity)
        return _where(a.isinf(), torch.copysign(end, a) if name.endswith("1") else end, found)

    return call


def power_above(value: Tensor) -> Tensor:
    """The value rounded up to f8_e8m0, saturating, in the dtype of `value`; NaN stays NaN."""
    import torch

    inside = value.double().clamp(LEAST_POWER, LARGEST["f8_e8m0"])
    part, exponent = torch.frexp(inside)  # part is in [0.5, 1)
    found = ((exponent.long() - (part == 0.5).long() + 1023) << 52).view(torch.float64)
    return _where(inside.isnan(), inside, found).to(value.dtype)


def odd(value: Tensor) -> Tensor:
    """An f64 rounded to odd in f32 (toward zero, last bit set if inexact): the result rounds to any narrower type like the
    f64."""
    import torch

    near = value.float()
    inexact = (near.double() != value) & value.isfinite() & near.isfinite()
    away = inexact & (near.double().abs() > value.abs())
    bits = near.view(torch.int32)
    bits = _where(inexact, (bits - away.int()) | 1, bits)
    return bits.view(torch.float32).double()


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "abs": lambda a: a.abs(),
    "sign": _sign,
    "copysign": _torch("copysign"),
    "min": lambda a, b: _where(b < a, b, a),
    "max": lambda a, b: _where(a < b, b, a),
    "minimum": _minimum,
    "maximum": _maximum,
    "fmin": _fmin,
    "fmax": _fmax,
    "rem": _rem,
    "mod": _mod,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a,
    "sqrt": _in_numpy("sqrt"),
    "rint": _torch("round"),
    "round_away": _round_away,
    "cbrt": _cbrt,
    "lgamma": _lgamma,
    "erfinv": _special("erfinv"),
    "erfcx": _special("erfcx"),
    "ndtri": _special("ndtri"),
    "bessel_i0": _special("modified_bessel_i0", math.inf),
    "bessel_i1": _special("modified_bessel_i1", math.inf),
    **{f"bessel_{kind}{order}": wave(kind, order) for kind in "jy" for order in (0, 1)},
    **{
        name: _torch(name)
        for name in (
            "floor", "ceil", "trunc", "isnan", "isinf", "isfinite", "signbit", "exp", "exp2", "expm1", "log", "log2", "log10",
            "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
            "erfc", "rsqrt", "pow", "atan2", "hypot",
        )
    },
}  # fmt: skip
