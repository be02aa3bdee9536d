"""Radii after discontinuous operations: the new radius covers every outcome that the intervals of the arguments allow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from opfacade.programs import reals
from opfacade.programs.ball import Ball
from opfacade.programs.types import LARGEST, range_of

if TYPE_CHECKING:
    from torch import Tensor


def _ball(v: Tensor, r: Tensor) -> Ball:
    return Ball(v.double(), r.double())


def compared(op: str, a: Ball, b: Ball) -> Ball:
    """Undecided if the intervals overlap, unless both arguments are exact. A comparison with NaN is always decided."""
    near = (a.v - b.v).abs() <= a.r + b.r
    open_ = (near | (a.r + b.r).isinf()) & (a.r + b.r > 0) & ~a.v.isnan() & ~b.v.isnan()
    return _ball(reals.OPERATIONS[op](a.v, b.v), open_)


def combined(op: str, *args: Ball) -> Ball:
    """and, or, xor, not of bools: undecided if both outcomes are possible."""
    truths, open_ = [arg.v != 0 for arg in args], [arg.r != 0 for arg in args]
    v = reals.OPERATIONS["not"](truths[0]) if op == "not" else reals.OPERATIONS[op](*truths)
    if op in ("not", "xor"):
        free = open_[0] if op == "not" else open_[0] | open_[1]
    else:
        settles = op == "or"  # an argument with this value decides the result
        settled = [(truth == settles) & ~one for truth, one in zip(truths, open_, strict=True)]
        free = (open_[0] | open_[1]) & ~settled[0] & ~settled[1]
    return _ball(v, free)


def selected(condition: Ball, a: Ball, b: Ball) -> Ball:
    """If the condition is undecided, the radius also covers the other value and its radius."""
    import torch

    first, open_ = condition.v != 0, condition.r != 0
    v, r = torch.where(first, a.v, b.v), torch.where(first, a.r, b.r)
    other, beside = torch.where(first, b.v, a.v), torch.where(first, b.r, a.r)
    apart = (other - v).abs().masked_fill(other == v, 0.0).nan_to_num(math.inf, math.inf)
    return _ball(v, torch.where(open_, torch.maximum(r, apart + beside), r))


def _whole(op: str) -> Callable[[Ball], Ball]:
    def step(a: Ball) -> Ball:
        import torch

        function = reals.OPERATIONS[op]
        v = function(a.v)
        ends = [(function(a.v + sign * a.r) - v).abs() for sign in (-1, 1)]
        return _ball(v, torch.maximum(*ends).nan_to_num(math.inf, math.inf).masked_fill(a.r == 0, 0.0))

    return step


def truncated(a: Ball, integer: str) -> Ball:
    """A float converted to an integer, saturating; NaN becomes 0."""
    import torch

    least, most = range_of(integer)

    def cut(x: Tensor) -> Tensor:
        return x.nan_to_num(0.0, float(most), float(least)).trunc().clamp(least, most)

    v = cut(a.v)
    ends = [(cut(a.v + sign * a.r) - v).abs() for sign in (-1, 1)]
    return _ball(v, torch.maximum(*ends).masked_fill(a.r == 0, 0.0).masked_fill(a.r.isinf(), math.inf))


def to_powers(a: Ball) -> Ball:
    """Rounded up to a power of two: the ball that contains the powers of both ends of the interval. A quotient by it stays
    bounded."""
    least, most = (reals.power_above(a.v + sign * a.r) for sign in (-1, 1))
    certain = (a.r == 0) | a.v.isnan()
    r = ((most - least) / 2).masked_fill(certain, 0.0).masked_fill(a.r.isinf(), math.inf)
    return _ball(reals.power_above(a.v).where(certain, (most + least) / 2), r)


def _sign(a: Ball) -> Ball:
    return _ball(reals.OPERATIONS["sign"](a.v), 2.0 * ((a.v.abs() <= a.r) & (a.r > 0)))


def _copysign(a: Ball, b: Ball) -> Ball:
    open_ = (b.v.abs() <= b.r) & (b.r > 0)
    return _ball(reals.OPERATIONS["copysign"](a.v, b.v), a.r + (2 * a.v.abs()).masked_fill(~open_, 0.0))


def _rest(op: str) -> Callable[[Ball, Ball], Ball]:
    """rem or mod: if all quotients agree, the result is a - q * b; otherwise it may be anything up to the divisor."""

    def step(a: Ball, b: Ball) -> Ball:
        v, cut = reals.OPERATIONS[op](a.v, b.v), reals.OPERATIONS["trunc" if op == "rem" else "floor"]
        corners = [cut((a.v + i * a.r) / (b.v + j * b.r)) for i in (-1, 1) for j in (-1, 1)]
        one = (corners[0] == corners[1]) & (corners[1] == corners[2]) & (corners[2] == corners[3]) & (b.v.abs() > b.r)
        r = (a.r + corners[0].abs() * b.r).where(one, 2 * (b.v.abs() + b.r))
        return _ball(v, r.nan_to_num(math.inf, math.inf).masked_fill((a.r == 0) & (b.r == 0), 0.0))

    return step


def _tested(op: str) -> Callable[[Ball], Ball]:
    def step(a: Ball) -> Ball:
        beyond = a.r.isinf() | (a.v.isfinite() & (a.v.abs() + a.r > LARGEST["f32"]))
        open_ = a.v.abs() <= a.r if op == "signbit" else beyond
        return _ball(reals.OPERATIONS[op](a.v), open_ & (a.r > 0))

    return step


STEPS: dict[str, Callable[..., Ball]] = {
    **{op: _whole(op) for op in ("floor", "ceil", "trunc", "rint", "round_away")},
    **{op: _tested(op) for op in ("isnan", "isinf", "isfinite", "signbit")},
    "sign": _sign, "copysign": _copysign, "rem": _rest("rem"), "mod": _rest("mod"),
}  # fmt: skip
