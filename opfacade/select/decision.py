"""Defines a measurement, the problems that share it, and the rule by which it overrides the default: pure functions.

The rule: the incumbent stays unless a challenger is faster by more than MARGIN and by more than the noise of both. Among
challengers that are as fast as the best, the first in the order of preference wins. So a tie never changes a choice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

from pydantic import Field

from opfacade.core.descriptor import Descriptor
from opfacade.core.model import Model, Version

MARGIN = 0.03
TIE = 0.01

Positive = Annotated[float, Field(gt=0, le=1e12)]
Share = Annotated[float, Field(ge=0, le=1e6)]


def tuning_key(descriptor: Descriptor[Any]) -> str:
    """The bucketed descriptor, as canonical JSON: problems with the same text share a measurement.

    Sizes of a call (`Model.sizes`) and the fields in `tuning_rounds` are rounded up to a power of two. The
    fields in `tuning_ignores` are left out; only the sign of those in `tuning_flags` is kept. All other fields are exact.
    """
    fields = _rounded(descriptor, descriptor.sizes | descriptor.tuning_rounds)
    fields = {name: value for name, value in fields.items() if name not in descriptor.tuning_ignores}
    fields |= {name: fields[name] > 0 for name in descriptor.tuning_flags & set(fields)}
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def _rounded(model: Model, names: frozenset[str]) -> dict[str, Any]:
    """The JSON fields of a model without its version, with the fields in `names` rounded up, also in nested models."""
    found = model.model_dump(mode="json")
    found.pop("schema_version", None)
    for name, value in found.items():
        part = getattr(model, name, None)  # JSON may have other keys too: the shared subexpressions of a program
        if isinstance(part, Model):
            found[name] = _rounded(part, part.sizes)
        elif name in names and value is not None:
            found[name] = [_up(size) for size in value] if isinstance(value, list) else _up(value)
    return found


def _up(size: object) -> Any:
    return size if not isinstance(size, int) or size <= 0 else 1 << (size - 1).bit_length()


class Measured(Model):
    """The measurement of one SKU: median time, half the width of its 95 % interval relative to the median, number of samples,
    and its largest error relative to the bound."""

    sku: str
    median_us: Positive
    noise: Share
    samples: Annotated[int, Field(ge=1, le=10**9)]
    worst: Annotated[float, Field(ge=0, le=1)]


class TuningRow(Model):
    """The measurements of one tuning key on one machine, from one tuning run, in order of preference; and the choice."""

    schema_version: Version = 1
    key: str
    hardware: str
    toolchain: str
    require: str
    date: str
    incumbent: str
    winner: str
    gain: Annotated[float, Field(ge=-1e6, le=1)]
    noise: Share
    measured: Annotated[tuple[Measured, ...], Field(strict=False, min_length=1)]


@dataclass(frozen=True, slots=True)
class Decision:
    """The winner is faster than the incumbent by `gain`, a fraction of the incumbent's time, known to within `noise`."""

    winner: str
    incumbent: str
    gain: float
    noise: float


def decide(measured: Sequence[Measured], incumbent: str | None = None) -> Decision:
    """The choice among SKUs in order of preference; the first is the incumbent if the given one is not among them."""
    holder = next((m for m in measured if m.sku == incumbent), measured[0])
    best = min(measured, key=lambda m: m.median_us)
    equals = [m for m in measured if _as_fast(m, best) and _beats(m, holder)]
    winner = equals[0] if equals and _beats(best, holder) else holder
    return Decision(winner.sku, holder.sku, _gain(winner, holder), _noise(winner, holder))


def _gain(challenger: Measured, holder: Measured) -> float:
    return 1 - challenger.median_us / holder.median_us


def _beats(challenger: Measured, holder: Measured) -> bool:
    return _gain(challenger, holder) > max(MARGIN, _noise(challenger, holder))


def _noise(challenger: Measured, holder: Measured) -> float:
    """Noise of a gain, which is a ratio of two times."""
    return challenger.median_us / holder.median_us * (challenger.noise + holder.noise)


def _as_fast(one: Measured, best: Measured) -> bool:
    return one.median_us <= best.median_us * (1 + max(TIE, one.noise + best.noise))


def clear(measured: Sequence[Measured], incumbent: str | None = None) -> bool:
    """True if more samples are unlikely to change the choice: every challenger is beyond MARGIN by more than the noise."""
    holder = next((m for m in measured if m.sku == incumbent), measured[0])
    others = [m for m in measured if m is not holder]
    return all(abs(_gain(m, holder) - MARGIN) > _noise(m, holder) for m in others)


def summary(samples: Sequence[float]) -> tuple[float, float]:
    """Median, and half the width of its 95 % interval (from order statistics) relative to the median; 1 for a single sample."""
    ordered, n = sorted(samples), len(samples)
    middle = median(ordered)
    reach = 0.98 * n**0.5
    low, high = int(n / 2 - reach), int(-(-(n / 2 + reach) // 1))
    if low < 0 or high >= n:
        return middle, 1.0
    return middle, (ordered[high] - ordered[low]) / 2 / middle
