"""Minimal cost of a problem, and predicted time of a SKU: pure functions, no device.

A candidate with a model (`Candidate.estimate`) follows the partition of its kernel, CTA by CTA, over the device's capacity
(`core.waves`), which accounts for the longest CTA, the last wave and unequal lengths without terms of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opfacade.core.candidate import EstimateOf
from opfacade.core.descriptor import Descriptor
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.select.registry import configs_for
from opfacade.testing.harness import Amount, harness_of
from opfacade.tools.workload import Lengths, Work, lengths_of


@dataclass(frozen=True, slots=True)
class Estimate:
    """waves: CTAs over the device's capacity. seconds: the prediction."""

    bytes: float
    flops: float
    blocks: float
    waves: float
    seconds: float


__all__ = ["Amount", "Estimate", "amount", "estimate", "regret"]

_BANDWIDTH = 4.2e12
_LAUNCH = 2.5e-6
_SMS = 132


def amount(descriptor: Descriptor[Any], lengths: Lengths | None = None) -> Amount:
    """Minimal work of the problem for any kernel; a paged cache counts only the requests' pages."""
    return harness_of(descriptor).amount(descriptor, lengths or lengths_of(Work(descriptor)))


def estimate(descriptor: Descriptor[Any], sku: KernelSku, target: Target, lengths: Lengths | None = None) -> Estimate:
    """Predicted time of `sku` for these lengths (default: a full batch) on a GPU target.

    The model is that of the candidate with the implementation of `sku`, else of the first candidate of its op with a model.
    Without a model, the problem costs a launch and its bytes.
    """
    found = lengths or lengths_of(Work(descriptor))
    least, model = amount(descriptor, found), _model(type(descriptor), sku.impl)
    if model is None:
        bandwidth = _BANDWIDTH * max(1, target.sm_count) / _SMS
        return Estimate(least.bytes, least.flops, 0.0, 0.0, _LAUNCH + least.bytes / bandwidth)
    predicted = model(descriptor, sku, target, found, least.bytes)
    waves = predicted.blocks / predicted.slots
    return Estimate(least.bytes + predicted.partial_bytes, least.flops, float(predicted.blocks), waves, predicted.seconds)


def _model(kind: type[Descriptor[Any]], impl: str) -> EstimateOf | None:
    models = {c.impl: c.estimate for c in reversed(configs_for(kind)) if c.estimate is not None}
    return models.get(impl) or next(reversed(models.values()), None)


def regret(predicted: Mapping[Any, float], measured: Mapping[Any, float]) -> float:
    """Mean relative loss if the predicted best is used instead of the measured best."""
    chosen = min(measured, key=lambda name: predicted[name])
    return measured[chosen] / min(measured.values()) - 1
