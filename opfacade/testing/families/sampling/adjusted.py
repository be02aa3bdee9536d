"""Adjusted logits of one row in numpy: float32 operations as documented, the soft cap in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from opfacade.testing.families.sampling.race import Array

LARGEST = np.float32(2.0**127)


@dataclass(frozen=True)
class Row:
    """The operands of one row as numpy values; operands that the descriptor does not have are absent."""

    descriptor: Any
    values: dict[str, Any]

    def number(self, name: str, absent: float) -> float:
        return float(self.values[name]) if name in self.values else absent


def candidates(row: Row) -> tuple[Any, Any]:
    """(adjusted logits before the temperature in float64, a mask of the candidate tokens)."""
    with np.errstate(all="ignore"):
        a = row.values["logits"].astype(np.float32)
        a = _penalized(_biased(_masked(a, row), row), row)
        inside = a > -np.inf
        a = np.where(inside, np.clip(a, -LARGEST, LARGEST), np.float32(0)).astype(np.float64)
        cap = float(np.float32(row.descriptor.soft_cap))
        return (np.tanh(a / cap) * cap if cap else a), inside


def heated(a: Array, temperature: float, capped: bool) -> Any:
    """Logits divided by a temperature above 0, rounded to float32 if `a` is exact."""
    with np.errstate(all="ignore"):
        found = np.clip(a / temperature, -float(LARGEST), float(LARGEST))
        return found if capped else np.clip(np.float32(a) / np.float32(temperature), -LARGEST, LARGEST).astype(np.float64)


def _masked(a: Array, row: Row) -> Any:
    if "bitmask" not in row.values:
        return a
    token = np.arange(a.size)
    allowed = row.values["bitmask"].astype(np.int64)[token // 32] >> token % 32 & 1
    return np.where(allowed == 1, a, np.float32(-np.inf))


def _biased(a: Array, row: Row) -> Any:
    if "bias" in row.values:
        return a + row.values["bias"]
    a = a.copy()
    for token, value in zip(row.values.get("bias_tokens", ()), row.values.get("bias_values", ()), strict=True):
        if 0 <= token < a.size:
            a[token] += value
    return a


def _penalized(a: Array, row: Row) -> Any:
    if "output_counts" not in row.values:
        return a
    repetition, frequency, presence = (row.values[name] for name in ("repetition", "frequency", "presence"))
    count = row.values["output_counts"]
    seen = row.values["prompt_mask"] | (count > 0)
    a = np.where(seen, np.where(a > 0, a / repetition, a * repetition), a)
    once = a - frequency * count.astype(np.float32)
    return np.where(count > 0, once - presence, a)
