"""Inputs of selection other than the caller's preference: the SKUs that a fleet allows, and measurements. They are plain
values, so that selection stays pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opfacade.select.decision import TuningRow, decide

if TYPE_CHECKING:
    from opfacade.core.sku import KernelSku


@dataclass(frozen=True, slots=True)
class Allowed:
    """The only SKU ids that may be selected, and the source of this restriction."""

    skus: frozenset[str]
    origin: str


@dataclass(frozen=True, slots=True)
class Tuned:
    """Measurement of a problem: a row, or the reason why there is none."""

    row: TuningRow | None
    origin: str

    def choose(self, eligible: Sequence[str]) -> tuple[str | None, str]:
        """The SKU to choose among the eligible SKUs, which are in order of preference, and the reason; None without a
        measurement."""
        known = {} if self.row is None else {m.sku: m for m in self.row.measured}
        measured = [known[sku] for sku in eligible if sku in known]
        if self.row is None or not measured:
            return None, self.origin
        if eligible[0] not in known:
            return None, "the default was not among those measured"
        decision = decide(measured, self.row.incumbent if self.row.incumbent in eligible else None)
        if decision.winner == decision.incumbent:
            faster = "no other was faster by enough"
        else:
            faster = f"{decision.gain:.1%} faster than {decision.incumbent}, to within {decision.noise:.1%}"
        said = f"{known[decision.winner].median_us:.4g} us in {known[decision.winner].samples} samples; {faster}"
        return decision.winner, f"{said} ({self.origin})"


@dataclass(frozen=True, slots=True)
class Pins:
    """allowed: the only SKUs that may be selected; None: no lock. tuned: set only for Preference(autotune="use")."""

    allowed: Allowed | None = None
    tuned: Tuned | None = None

    def refuses(self, sku: KernelSku) -> bool:
        return self.allowed is not None and sku.id not in self.allowed.skus


NO_PINS = Pins()
