"""What a problem costs at least, and what a SKU is predicted to take: pure functions, no device.

A candidate that has a model (`Candidate.estimate`) follows the work as its kernel cuts it, block by block, over what the device
can hold (`cost_blocks`). The longest block, the last wave and a batch of unlike lengths then need no terms of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opfacade.core.candidate import EstimateOf
from opfacade.core.descriptor import Descriptor
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.select.registry import variants_for
from opfacade.testing.harness import Amount, harness_of
from opfacade.tools.workload import Lengths, Work, lengths_of


@dataclass(frozen=True, slots=True)
class Estimate:
    """waves: how often the blocks fill the device. seconds: the prediction."""

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
    """The least that the problem costs, whatever solves it: of a paged cache only what the requests have."""
    return harness_of(descriptor).amount(descriptor, lengths or lengths_of(Work(descriptor)))


def estimate(descriptor: Descriptor[Any], sku: KernelSku, target: Target, lengths: Lengths | None = None) -> Estimate:
    """What `sku` is predicted to take for these lengths (default: a full batch) on a GPU target.

    The model is that of the candidate with the implementation of `sku`, else that of the first candidate of its op that has
    one. Without any the problem takes a launch and its bytes.
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
    models = {c.impl: c.estimate for c in reversed(variants_for(kind)) if c.estimate is not None}
    return models.get(impl) or next(reversed(models.values()), None)


def regret(predicted: Mapping[Any, float], measured: Mapping[Any, float]) -> float:
    """How much longer than the best takes what was predicted to be best, as a share, over what was measured."""
    chosen = min(measured, key=lambda name: predicted[name])
    return measured[chosen] / min(measured.values()) - 1
