"""Facts that all plans of one SKU share; the first of them computes these facts."""

from __future__ import annotations

from typing import ClassVar

from opfacade import telemetry
from opfacade.core.candidate import Candidate
from opfacade.core.plan_handles import Handles
from opfacade.core.preference import DEFAULT, Preference
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.env import PlanSettings

_MOST = 1024


class PlanSeries:
    """facts: values of the plan's attributes NAMES. handles: gives each plan its handle."""

    NAMES: ClassVar = ("preference", "target", "sku", "_candidate", "_admitted", "_crosscheck", "_count", "_count_select")
    __slots__ = ("_made_for", "_stats", "facts", "handles")

    def __init__(self, preference: Preference, target: Target, sku: KernelSku, candidate: Candidate, settings: PlanSettings):
        self._made_for = (target, sku, candidate, settings)
        self._stats = stats = telemetry.stats(sku.id)
        own = (settings.validate == "off", settings.crosscheck, stats.runs.add, stats.selects.add)
        self.facts = (preference, target, sku, candidate, *own)
        self.handles = Handles(preference, target, sku.id)

    def serves(self, target: Target, sku: KernelSku, candidate: Candidate, settings: PlanSettings) -> bool:
        """Whether the series was made for these values. The SKU is then shown in telemetry."""
        self._stats.forgotten = False
        return self._made_for == (target, sku, candidate, settings)


_known: dict[str, PlanSeries] = {}


def series_of(
    preference: Preference, target: Target, sku: KernelSku, candidate: Candidate, settings: PlanSettings
) -> PlanSeries:
    """The series of a SKU; with another preference than the default, a new one."""
    if preference is not DEFAULT:
        return PlanSeries(preference, target, sku, candidate, settings)
    name = sku.id
    series = _known.get(name)
    if series is None or not series.serves(target, sku, candidate, settings):
        if len(_known) >= _MOST:
            _known.clear()
        series = _known[name] = PlanSeries(preference, target, sku, candidate, settings)
    return series
