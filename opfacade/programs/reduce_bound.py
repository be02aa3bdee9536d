"""Error bounds for the results of a reducer along the last axis of balls, for any order in which a term passes at most `steps`
roundings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from opfacade.programs import integers, reduce
from opfacade.programs.ball import Ball
from opfacade.programs.types import INTEGERS, LARGEST, range_of

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.programs.bound import Machine

# Roundings of the argument of exp and, with an approximate exp, of its product with log2(e).
_EXP_ARGUMENT = 3.0


class Joining(NamedTuple):
    """The parameters of a reduction. type: the type of the values. steps: the number of roundings that a term passes."""

    machine: Machine
    type: str
    steps: float

    @property
    def u(self) -> float:
        return self.machine.u.get(self.type, 0.0)


def joined(reducer: str, value: Ball, how: Joining) -> Mapping[str, Ball]:
    """Each result of a stage with its radius."""
    return _BOUNDS[reducer](value, how)


def _finite(ball: Ball) -> Ball:
    """The ball with non-finite values replaced by 0, because those determine the result without a bound."""
    import torch

    return Ball(torch.where(ball.v.isfinite(), ball.v, 0.0), torch.where(ball.v.isfinite(), ball.r, 0.0))


def _sum(value: Ball, how: Joining) -> Mapping[str, Ball]:
    v, (inner, r) = value.v.sum(-1), _finite(value)
    size = (inner.abs() + r).sum(-1)
    radius = r.sum(-1) + (1.01 * how.steps * how.u * size if how.u else 0.0)
    if how.type in INTEGERS:
        return {"value": _wrapped("sum", value, Ball(v, radius), how.type)}
    return {"value": Ball(v, _decided(value, radius).masked_fill(size > LARGEST[how.type], math.inf))}


def _wrapped(reducer: str, value: Ball, found: Ball, type: str) -> Ball:
    """A sum or product of integers: exact modulo 2^bits if all elements are exact and representable as doubles; otherwise
    without a bound if it may leave the range."""
    import torch

    least, most = range_of(type)
    beyond = ~(found.v - found.r >= least) | ~(found.v + found.r <= most) | (value.v.abs() >= 2.0**53).any(-1)
    certain = (value.r == 0).all(-1) & (value.v.abs() < 2.0**53).all(-1)
    exact = reduce.reduced(reducer, type, value.v.nan_to_num(0.0, 0.0, 0.0).long())["value"]
    whole = integers.as_float(exact, torch.float64) if type == "u64" else exact.double()
    r = found.r.masked_fill(beyond, math.inf).masked_fill(certain, 0.0)
    return Ball(torch.where(certain, whole, found.v), r)


def _decided(value: Ball, radius: Tensor) -> Tensor:
    """The radius, but 0 if exact non-finite elements determine the result, and infinite if an inexact one may."""
    special = ~value.v.isfinite()
    open_ = (special & (value.r != 0)).any(-1) | value.r.isinf().any(-1)
    return radius.masked_fill(special.any(-1), 0.0).masked_fill(open_, math.inf)


def _prod(value: Ball, how: Joining) -> Mapping[str, Ball]:
    """Each product has a relative error, unless a partial product may leave the range of normal numbers."""
    import torch

    v, (inner, r) = value.v.prod(-1), _finite(value)
    if how.type in INTEGERS:
        rough = (r > 0).any(-1)
        return {"value": _wrapped("prod", value, Ball(v, torch.zeros_like(v).masked_fill(rough, math.inf)), how.type)}
    logs = inner.abs().clamp(min=1e-300).log2()
    narrow = 120.0 if how.type == "f32" else 1000.0
    beyond = (logs.clamp(max=0).sum(-1) < -narrow) | (logs.clamp(min=0).sum(-1) > narrow)
    beyond &= ~((inner == 0) & (r == 0)).any(-1) | (logs.clamp(min=0).sum(-1) > narrow)
    grown = (inner.abs() + r).prod(-1) * math.exp(1.01 * how.u * value.v.shape[-1])
    return {"value": Ball(v, _decided(value, grown - inner.abs().prod(-1)).masked_fill(beyond, math.inf))}


def _extreme(reducer: str) -> Callable[[Ball, Joining], Mapping[str, Ball]]:
    sign = 1.0 if reducer.endswith("max") else -1.0

    def step(value: Ball, how: Joining) -> Mapping[str, Ball]:
        if value.v.shape[-1] == 0:
            none = reduce.reduced(reducer, "f64", value.v)["value"]
            return {"value": Ball(none, none.new_zeros(none.shape))}
        found = reduce.reduced(reducer, "f64", value.v)
        radius = value.r.amax(-1).masked_fill((value.v.isnan() & (value.r != 0)).any(-1), math.inf)
        balls = {"value": Ball(found["value"], radius.masked_fill(found["value"].isnan() & (value.r == 0).all(-1), 0.0))}
        if "index" in found:
            near = sign * value.v + value.r >= (sign * value.v - value.r).amax(-1, keepdim=True)
            open_ = (near.sum(-1) > 1) & (value.r != 0).any(-1)
            index = found["index"].double()
            balls["index"] = Ball(index, index.new_zeros(index.shape).masked_fill(open_, math.inf))
        return balls

    return step


def _truths(reducer: str) -> Callable[[Ball, Joining], Mapping[str, Ball]]:
    settles = reducer == "any"  # an element with this value decides the result

    def step(value: Ball, how: Joining) -> Mapping[str, Ball]:
        truth, open_ = value.v != 0, value.r != 0
        settled = ((truth == settles) & ~open_).any(-1)
        v = truth.any(-1) if settles else truth.all(-1)
        return {"value": Ball(v.double(), (open_.any(-1) & ~settled).double())}

    return step


def _welford(value: Ball, how: Joining) -> Mapping[str, Ball]:
    """Each step changes the mean by at most one element. A term of m2 is the product of two deviations from running means,
    whose squares are at most twice the term."""
    n, (inner, r) = value.v.shape[-1], _finite(value)
    found = reduce.reduced("welford", how.type, value.v)
    if n == 0:
        return {name: Ball(one, one.new_zeros(one.shape)) for name, one in found.items()}
    mean = r.amax(-1) + 8 * how.steps * how.u * inner.abs().amax(-1)
    m2 = 3 * mean * (n * found["m2"]).sqrt() + (2 * how.steps + 8) * how.u * found["m2"] + n * mean.square()
    special = (~value.v.isfinite()).any(-1) | value.r.isinf().any(-1)
    mean, m2 = (one.masked_fill(special, math.inf) for one in (mean, m2))
    return {"mean": Ball(found["mean"], mean), "m2": Ball(found["m2"], m2)}


def _expsum(value: Ball, how: Joining) -> Mapping[str, Ball]:
    """A term is rescaled at most `steps` times as the maximum rises, by factors whose exponents add up to that of the term."""
    n = value.v.shape[-1]
    found = reduce.reduced("expsum", how.type, value.v)
    most, total = found["max"], found["sum"]
    if n == 0:
        return {name: Ball(one, one.new_zeros(one.shape)) for name, one in found.items()}
    top, error = value.r.amax(-1), how.machine.relative("exp", how.type)
    gap = (value.v - most.unsqueeze(-1)).nan_to_num(0.0, 0.0, 0.0)
    term = gap.exp().masked_fill(~value.v.isfinite(), 0.0)
    moved = (2 * (value.r + top.unsqueeze(-1))).clamp(max=700.0).expm1()
    share = moved + _EXP_ARGUMENT * how.u * gap.abs() + (how.steps + 1) * (error + 2 * how.u)
    radius = 1.01 * (term * share).sum(-1) + n * how.machine.least
    special = ~most.isfinite()
    radius = radius.masked_fill(special, 0.0).masked_fill(value.r.isinf().any(-1), math.inf)
    radius = radius.masked_fill(special & (value.r != 0).any(-1), math.inf)
    return {"max": Ball(most, top.masked_fill(special & (value.r == 0).all(-1), 0.0)), "sum": Ball(total, radius)}


_BOUNDS: dict[str, Callable[[Ball, Joining], Mapping[str, Ball]]] = {
    "sum": _sum, "prod": _prod, "welford": _welford, "expsum": _expsum,
    **{name: _extreme(name) for name in ("max", "min", "argmax", "argmin")},
    **{name: _truths(name) for name in ("any", "all")},
}  # fmt: skip
