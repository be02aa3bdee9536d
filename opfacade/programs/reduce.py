"""Reducers in torch, along the last axis: integers are held as int64, floats in their dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from opfacade.programs import integers
from opfacade.programs.types import INTEGERS, range_of

if TYPE_CHECKING:
    from torch import Tensor

Parts = Mapping[str, "Tensor"]
_TOP = -(2**63)


def reduced(reducer: str, type: str, value: Tensor) -> Parts:
    """The results of one stage. type: the type of the values; floats may be held with more digits."""
    return _REDUCERS[reducer](value, type)


def _sum(value: Tensor, type: str) -> Parts:
    return {"value": integers.in_range(value.sum(-1), type) if type in INTEGERS else value.sum(-1)}


def _prod(value: Tensor, type: str) -> Parts:
    return {"value": integers.in_range(value.prod(-1), type) if type in INTEGERS else value.prod(-1)}


def _extreme(sign: int, with_index: bool) -> Callable[[Tensor, str], Parts]:
    def step(value: Tensor, type: str) -> Parts:
        if value.shape[-1] == 0 and not with_index:
            return {"value": _of_none(value, type, sign)}
        index = _first(value if type != "u64" else value ^ _TOP, sign)
        found = value.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        if with_index:
            return {"value": found, "index": index}
        return {"value": _signed_zero(value, found, sign) if value.is_floating_point() else found}

    return step


def _of_none(value: Tensor, type: str, sign: int) -> Tensor:
    """The identity of max or min: an infinity, or the end of the integer range; for u64, the int64 with the same bits."""
    if value.is_floating_point():
        return value.sum(-1) - sign * math.inf
    least, most = range_of(type)
    end = least if sign > 0 else most
    return value.sum(-1) + (end - 2**64 if end >= 2**63 else end)


def _first(value: Tensor, sign: int) -> Tensor:
    """The first index of the largest (sign 1) or smallest value; the first NaN wins."""
    import torch

    if value.shape[-1] == 0:
        return value.sum(-1).long()
    best = value.amax(-1, keepdim=True) if sign > 0 else value.amin(-1, keepdim=True)
    hit = (value == best) | (value.isnan() if value.is_floating_point() else torch.zeros_like(value, dtype=torch.bool))
    return hit.to(torch.uint8).argmax(-1)


def _signed_zero(value: Tensor, found: Tensor, sign: int) -> Tensor:
    """The largest (sign 1) or smallest value, with -0 below +0."""
    other = ((value == 0) & (value.signbit() != (sign > 0))).any(-1)
    return found.masked_fill((found == 0) & other, 0.0 if sign > 0 else -0.0)


def _welford(value: Tensor, type: str) -> Parts:
    mean = value.mean(-1) if value.shape[-1] else value.sum(-1) + math.nan
    return {"mean": mean, "m2": (value - mean.unsqueeze(-1)).square().sum(-1)}


def _expsum(value: Tensor, type: str) -> Parts:
    import torch

    if value.shape[-1] == 0:
        none = value.sum(-1)
        return {"max": none - math.inf, "sum": none}
    most = value.amax(-1)
    term = torch.where(value == most.unsqueeze(-1), 1.0, (value - most.unsqueeze(-1)).exp())
    return {"max": _signed_zero(value, most, 1), "sum": term.sum(-1)}


_REDUCERS: dict[str, Callable[[Tensor, str], Parts]] = {
    "sum": _sum,
    "prod": _prod,
    "max": _extreme(1, False),
    "min": _extreme(-1, False),
    "argmax": _extreme(1, True),
    "argmin": _extreme(-1, True),
    "any": lambda value, type: {"value": value.any(-1)},
    "all": lambda value, type: {"value": value.all(-1)},
    "welford": _welford,
    "expsum": _expsum,
}
