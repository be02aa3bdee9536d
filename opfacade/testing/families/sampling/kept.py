"""The tokens that a row may keep and the tokens that it must keep: the kept set in float64, with the margins of an
error model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from opfacade.testing.families.sampling.adjusted import Row, candidates, heated

UNIT = 2.0**40
LN2 = math.log(2)


@dataclass(frozen=True)
class Margins:
    """Constants of an error model. key: absolute error of a key. roundoff: unit roundoff. exp2, tanh: relative errors."""

    key: float
    roundoff: float
    exp2: float
    tanh: float


class RaceRow:
    """One row: its order, its masses, and the tokens that may and must be kept."""

    def __init__(self, row: Row, margins: Margins) -> None:
        self.row, self.margins, descriptor = row, margins, row.descriptor
        before, self.inside = candidates(row)
        temperature = row.number("temperature", 1.0)
        self.greedy = not temperature > 0
        self.a = before if self.greedy else heated(before, temperature, bool(descriptor.soft_cap))
        self.any = bool(self.inside.any())
        held = np.abs(self.a[self.inside]).max() if self.any else 0.0
        self.blur = 2 * margins.tanh * held if descriptor.soft_cap else 0.0

    @cached_property
    def b(self) -> Any:
        return np.where(self.inside, self.a / LN2, -np.inf)

    @cached_property
    def top(self) -> float:
        return float(self.b.max())

    @cached_property
    def order(self) -> Any:
        """The ids of the candidate tokens, in sorted order."""
        ids = np.flatnonzero(self.inside)
        return ids[np.argsort(-self.a[ids], kind="stable")]

    @cached_property
    def before(self) -> tuple[Any, Any]:
        """For each position of the order, the minimum and maximum number of preceding candidates."""
        place = np.arange(self.order.size)
        if not self.blur:
            return place, place
        falling = -self.a[self.order]
        return np.searchsorted(falling, falling - self.blur), np.searchsorted(falling, falling + self.blur, "right") - 1

    @cached_property
    def masses(self) -> Any:
        """The masses in sorted order, relative to the unit and not rounded."""
        return UNIT * np.exp2(self.b[self.order] - self.top)

    @cached_property
    def spread(self) -> float:
        """The relative error of a sum of masses."""
        m = self.margins
        return LN2 * 4 * m.roundoff * (abs(self.top) + 42) + 2 * m.exp2 + 2 * self.blur

    @cached_property
    def slack(self) -> float:
        """The absolute error of a sum of masses, because each mass is rounded."""
        return float((self.masses >= 2.0**-3).sum()) + 2.0

    @cached_property
    def sums(self) -> Any:
        return np.concatenate([[0.0], np.cumsum(self.masses)])

    def eta(self, token: object) -> Any:
        return self.margins.key + 2 * self.margins.roundoff * np.abs(self.b[token]) + self.blur / LN2

    @cached_property
    def kept(self) -> tuple[Any, Any]:
        """(may, must): a bool per position of the order."""
        may = must = np.ones(self.order.size, bool)
        for one, other in (self._by_count(), self._by_mass(), self._by_ratio()):
            may, must = may & one, must & other
        return may, must

    def _limit(self) -> int:
        descriptor, vocab = self.row.descriptor, self.row.descriptor.vocab
        k = int(self.row.number("top_k", 0))
        k = k if 0 < k < vocab else vocab
        return int(min(k, descriptor.max_top_k or vocab))

    def _by_count(self) -> tuple[Any, Any]:
        surely, maybe = self.before
        return surely < self._limit(), maybe < self._limit()

    def _by_mass(self) -> tuple[Any, Any]:
        p, (surely, maybe) = self.row.number("top_p", 1.0), self.before
        if not p < 1:
            return np.ones(self.order.size, bool), np.ones(self.order.size, bool)
        joint = self.row.descriptor.order == "joint"
        total = self.sums[self.order.size if joint else min(self._limit(), self.order.size)]
        margin = self.spread * total + self.slack
        may = (self.sums[surely] - margin < p * total) & (p > 0)
        return may | (surely == 0), (self.sums[maybe] + margin < p * total) & (p > 0) | (maybe == 0)

    def _by_ratio(self) -> tuple[Any, Any]:
        p, b = self.row.number("min_p", 0.0), self.b[self.order]
        if not p > 0:
            return np.ones(self.order.size, bool), np.ones(self.order.size, bool)
        cut, margin = self.top + math.log2(min(p, 1.0)), 2 * float(self.eta(self.order[0])) + 2.0**-22
        return b >= cut - margin, (b >= cut + margin) | (self.before[1] == 0)
