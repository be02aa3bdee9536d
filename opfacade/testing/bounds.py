"""Values with error bounds, and the errors of outputs relative to the bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opfacade.testing.bits import bits

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.sku import KernelSku


IndexOf = Callable[[list[int]], list[int]]


@dataclass(frozen=True, slots=True)
class Report:
    """The largest error relative to the hard and the tight bound, its location, and the number of compared elements.

    0 is exact; above 1 the bound is violated; inf is a wrong special value (NaN, infinity, or wrong bits where bits must be
    equal).
    """

    worst: float
    worst_tight: float
    where: str
    elements: int


@dataclass(frozen=True, slots=True)
class Bounded:
    """Oracle values with bounds, all fp64 and of one shape; or integers or bools, which must be equal regardless of the
    bounds."""

    name: str
    want: Tensor
    hard: Tensor
    tight: Tensor


def constants(sku: KernelSku) -> dict[str, float]:
    return dict(sku.precision_guarantee.error_model.constants)


def join(a: Report, b: Report) -> Report:
    lead = a if (a.worst, a.worst_tight) >= (b.worst, b.worst_tight) else b
    return Report(max(a.worst, b.worst), max(a.worst_tight, b.worst_tight), lead.where, a.elements + b.elements)


def compare(bounded: list[Bounded], got: dict[str, Tensor], place: str = "", index_of: IndexOf = list) -> Report:
    """The worst ratio of |got - want| to the bounds; special values must agree exactly.

    index_of: maps the index of an element in `got` to the index in the operand, which the report names.
    """
    total = Report(0.0, 0.0, place, 0)
    for item in bounded:
        value = got[item.name]
        if item.want.is_floating_point():
            value = value.double()
            hard, tight = _ratio(value, item.want, item.hard), _ratio(value, item.want, item.tight)
        else:
            hard = tight = _unequal(value, item.want)
        if value.numel() == 0:
            continue
        at = int(hard.argmax())
        values = f"got {_shown(value.flatten()[at])} want {_shown(item.want.flatten()[at])}"
        where = f"{place} {item.name}{index_of(_unravel(at, tuple(value.shape)))} {values}"
        total = join(total, Report(float(hard.max()), float(tight.max()), where, value.numel()))
    return total


def _ratio(got: Tensor, want: Tensor, bound: Tensor) -> Tensor:
    import torch

    error = (got - want).abs()
    ratio = torch.where(error == 0, torch.zeros_like(error), error / bound)
    same = (got == want) | (got.isnan() & want.isnan())
    special = ~(got.isfinite() & want.isfinite())
    return torch.where(special, torch.where(same, torch.zeros_like(ratio), torch.full_like(ratio, math.inf)), ratio)


def _shown(value: Tensor) -> str:
    return f"{value:.6g}" if value.is_floating_point() else str(value.item())


def _unequal(got: Tensor, want: Tensor) -> Tensor:
    """0 if the bits are equal, otherwise inf; compares bits because a bool may hold an invalid value."""
    import torch

    wrong = bits(got) != bits(want)
    return torch.where(wrong, math.inf, 0.0)


def _unravel(flat: int, shape: tuple[int, ...]) -> list[int]:
    return [flat // math.prod(shape[axis + 1 :]) % size for axis, size in enumerate(shape)]
