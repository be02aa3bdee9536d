"""What a problem costs at least, and what a SKU is predicted to take: pure functions, no device.

A prediction follows the work as the kernel cuts it, block by block, over what the device can hold (`cost_blocks`): of a decode
bytes, of a prefill products. The longest block, the last wave and a batch of unlike lengths then need no terms of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opfacade import cost_decode, cost_prefill
from opfacade.cost_blocks import first_hidden, requests_of
from opfacade.descriptor import Descriptor
from opfacade.operands import nbytes
from opfacade.sku import ITEMSIZE, KernelSku
from opfacade.target import Target
from opfacade.workload import Lengths, Work, lengths_of


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes that must be moved, products and sums that must be done: of the problem, whatever solves it."""

    bytes: float
    flops: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """waves: how often the blocks fill the device. seconds: the prediction."""

    bytes: float
    flops: float
    blocks: float
    waves: float
    seconds: float


_BANDWIDTH = 4.2e12
_LAUNCH = 2.5e-6
_SMS = 132


def amount(descriptor: Descriptor[Any], lengths: Lengths | None = None) -> Amount:
    """The least that the problem costs: every operand once, of a paged cache only what the requests have."""
    d: Any = descriptor
    found = lengths or lengths_of(Work(descriptor))
    if d.op == "paged_kv_append":
        moved = ITEMSIZE[d.row_dtype] + ITEMSIZE[d.paged_kv.dtype]
        return Amount(2.0 * d.total_num_rows * d.paged_kv.num_kv_heads * d.paged_kv.head_dim * moved, 0.0)
    pool = [spec for name, spec in descriptor.operands().items() if name not in ("k_data", "v_data", "k", "v", "ckv", "kpe")]
    plain = nbytes([spec for spec in pool if all(dim.size is not None for dim in spec.shape)])
    if not hasattr(d, "num_qo_heads") or not hasattr(d, "kv_heads"):
        return Amount(float(plain), 3.0 * plain / 2)
    keys = sum(_visible_keys(d, q, kv) for q, kv in requests_of(d, found))
    pairs = sum(_pairs(d, q, kv) for q, kv in requests_of(d, found))
    return Amount(plain + keys * float(d.kv_elements) * ITEMSIZE[d.kv_dtype], 2.0 * pairs * d.num_qo_heads * d.pair_elements)


def _visible_keys(d: Any, q: int, kv: int) -> float:
    """Keys that any row of a request sees."""
    return max(0.0, kv - first_hidden(d, 0, q, kv)) if q else 0.0


def _pairs(d: Any, q: int, kv: int) -> float:
    """(row, key) pairs that are not masked: of a causal triangle its mean row, times the rows."""
    causal = getattr(d, "causal", False)
    seen = kv - (min(q, kv) - 1) / 2 * (min(q, kv) / q) if causal and q else float(kv)
    return q * max(0.0, min(seen, d.window_left + 1.0) if d.window_left >= 0 else seen)


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
