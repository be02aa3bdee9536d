"""What a problem costs at least, and what a SKU is predicted to take: pure functions, no device.

A prediction follows the work as the kernel cuts it, block by block, over what the device can hold (`cost_blocks`): of a decode
bytes, of a prefill products. The longest block, the last wave and a batch of unlike lengths then need no terms of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opfacade import cost_decode, cost_prefill
from opfacade.descriptor import Descriptor
from opfacade.sku import KernelSku
from opfacade.target import Target
from opfacade.testing.harness import Amount, harness_of
from opfacade.workload import Lengths, Work, lengths_of


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
    """What `sku` is predicted to take for these lengths (default: a full batch) on a GPU target."""
    d: Any = descriptor
    found = lengths or lengths_of(Work(descriptor))
    least, bandwidth = amount(descriptor, found), _BANDWIDTH * max(1, target.sm_count) / _SMS
    if not hasattr(d, "kv_split"):
        return Estimate(least.bytes, least.flops, 0.0, 0.0, _LAUNCH + least.bytes / bandwidth)
    partial = 8.0 * (d.dim_vo + 1)  # of a row, written and read
    if hasattr(d, "total_num_rows"):
        rates = cost_prefill.rates_of(sku)
        time, tiles = cost_prefill.seconds(d, sku, target, found)
        slots, blocks, parts = max(1, target.sm_count) * rates.blocks, len(tiles.sizes), tiles.parts
        time = max(time, rates.launch + least.bytes / bandwidth)
    else:
        time, runs = cost_decode.seconds(d, sku, target, found.kv or ())
        slots, blocks, parts = runs.slots, len(runs.sizes), runs.parts * min(d.group_size, 16)
    return Estimate(least.bytes + partial * parts, least.flops, float(blocks), blocks / slots, time)


def regret(predicted: Mapping[Any, float], measured: Mapping[Any, float]) -> float:
    """How much longer than the best takes what was predicted to be best, as a share, over what was measured."""
    chosen = min(measured, key=lambda name: predicted[name])
    return measured[chosen] / min(measured.values()) - 1
