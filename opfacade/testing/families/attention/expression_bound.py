"""Evaluation of an expression in fp64 with a bound on its f32 error: the oracle's side of `Variant.logits`.

Each step carries the exact value v and a radius r: the computed value is in [v - r, v + r] for any order of rounding or
contraction. The score enters with the radius of q.k. Discontinuous steps take exact arguments only (required by
plans/_attention/expression.py) and are evaluated exactly; all others are continuous: their radius is the largest change
over the arguments' intervals plus one rounding. If a step may exceed the largest f32, the radius is infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from opfacade.plans._attention.expression import INEXACT, Apply, Node
from opfacade.plans._attention.variant import RAMP_KEYS, added_ramp, ramp
from opfacade.plans._attention.variant_eval import Values, exact

if TYPE_CHECKING:
    from torch import Tensor

_TINY = 2.0**-149
_LARGEST = (2.0 - 2.0**-23) * 2.0**127


class Ball(NamedTuple):
    """A value and its radius."""

    v: Tensor
    r: Tensor


@dataclass(frozen=True, slots=True)
class Roundoff:
    """u: of one operation. function: relative error of exp2 and log2, absolute error of tanh. line: 1 where the ramp of
    logits that are the score and a ramp is left to the exponents."""

    u: float
    function: float
    line: float = 0.0


def bound(node: Node, values: Values, score: Ball, unit: Roundoff) -> Ball:
    """The expression at `score`; both tensors of one shape, to which `values` broadcast."""
    found = _walk(node, values, score, unit)
    if unit.line and (line := added_ramp(node)) is not None:
        # Its products in units of exponents, relative to a base: each is rounded once more, and so is what the first becomes.
        found = Ball(found.v, found.r + 3 * unit.u * _first_product(line, values))
    return Ball(found.v.expand(score.v.shape), found.r.expand(score.v.shape))


def _walk(node: Node, values: Values, score: Ball, unit: Roundoff) -> Ball:
    import torch

    if not isinstance(node, Apply):
        if getattr(node, "name", "") == "score":
            return score
        leaf = exact(node, values).double()
        return Ball(leaf, torch.zeros_like(leaf))
    if node.op == "select":
        condition, (a, b) = exact(node.args[0], values), (_walk(arg, values, score, unit) for arg in node.args[1:])
        return Ball(torch.where(condition, a.v, b.v), torch.where(condition, a.r, b.r))
    if node.op == "f32":
        value = exact(node.args[0], values).double()
        return Ball(value, (unit.u * value.abs()).masked_fill(value.abs() <= 2.0**24, 0.0))
    if node.op == "floor":
        value = exact(node, values).double()
        return Ball(value, torch.zeros_like(value))
    v, r = _STEPS[node.op](*(_walk(arg, values, score, unit) for arg in node.args))
    if ramp(node) is not None:
        start = _first_product(node, values)  # rounded before the sum is
        r = (r + unit.u * start + _TINY).masked_fill(start > _LARGEST, float("inf"))
    if node.op == "tanh":
        return Ball(v, r + unit.function)
    free = ("neg", "abs", "min", "max")
    return _rounded(v, r, 0.0 if node.op in free else unit.function if node.op in INEXACT else unit.u)


def _first_product(node: Node, values: Values) -> Tensor:
    """For a linear term: the largest value that a kernel may compute once a row and tile."""
    line = ramp(node)
    assert line is not None
    factor, distance = (exact(part, values).double().abs() for part in line)
    return factor * (distance + RAMP_KEYS)


def _rounded(v: Tensor, r: Tensor, u: float) -> Ball:
    r = (r + u * (v.abs() + r) + (_TINY if u else 0.0)).nan_to_num(float("inf"))
    return Ball(v, r.masked_fill(v.abs() + r > _LARGEST, float("inf")))


Step = tuple["Tensor", "Tensor"]


def _add(a: Ball, b: Ball) -> Step:
    return a.v + b.v, a.r + b.r


def _sub(a: Ball, b: Ball) -> Step:
    return a.v - b.v, a.r + b.r


def _mul(a: Ball, b: Ball) -> Step:
    return a.v * b.v, a.v.abs() * b.r + a.r * b.v.abs() + a.r * b.r


def _div(a: Ball, b: Ball) -> Step:
    """Where the divisor may be 0 anything may come."""
    v, least = a.v / b.v, b.v.abs() - b.r
    r = ((a.r + v.abs() * b.r) / least).masked_fill(least <= 0, float("inf"))
    return v, r.masked_fill((a.r == 0) & (b.r == 0), 0.0)


def _neg(a: Ball) -> Step:
    return -a.v, a.r


def _abs(a: Ball) -> Step:
    return a.v.abs(), a.r


def _min(a: Ball, b: Ball) -> Step:
    import torch

    return torch.where(b.v < a.v, b.v, a.v), torch.maximum(a.r, b.r)


def _max(a: Ball, b: Ball) -> Step:
    import torch

    return torch.where(a.v < b.v, b.v, a.v), torch.maximum(a.r, b.r)


def _sqrt(a: Ball) -> Step:
    import torch

    v, low = a.v.sqrt(), (a.v - a.r).clamp(min=0.0).sqrt()
    high = torch.where(a.v < a.r, a.r.new_tensor(float("inf")), (a.v + a.r).sqrt() - v)  # below 0 it is NaN
    return v, torch.maximum(v - low, high)


def _exp2(a: Ball) -> Step:
    v = a.v.exp2()
    return v, v * (a.r * 0.6931471805599454).expm1()


def _log2(a: Ball) -> Step:
    v, low = a.v.log2(), a.v - a.r
    return v, (v - low.log2()).abs().masked_fill((low <= 0) & (a.r > 0), float("inf")).masked_fill(a.r == 0, 0.0)


def _tanh(a: Ball) -> Step:
    """Steepest near 0: within the interval, at the place nearest to it."""
    nearest = (a.v.abs() - a.r).clamp(min=0.0)
    return a.v.tanh(), a.r * (1 - nearest.tanh() ** 2)


_STEPS: dict[str, Callable[..., Step]] = {
    "add": _add, "sub": _sub, "mul": _mul, "div": _div, "neg": _neg, "abs": _abs, "min": _min, "max": _max, "sqrt": _sqrt,
    "exp2": _exp2, "log2": _log2, "tanh": _tanh,
}  # fmt: skip
