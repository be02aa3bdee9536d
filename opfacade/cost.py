"""What a problem costs at least, and what a SKU is predicted to take: pure functions, no device.

A kernel takes as long as the slowest of three things: moving its bytes, doing its products, and the longest block, which has
only one SM's share of both. A split shortens the longest block and pays with partial results, written and read once, and with
a second launch. The rates are of one H200, fitted to measurements (bench/results); an implementation without gets the usual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
class Rates:
    """How fast an implementation is. Of the device: bytes and FLOP in a second. Of one block alone: the same.

    rows: query rows of a block, whether there are so many or not. launch, merge: seconds of the first and of a second launch.
    """

    bandwidth: float
    flops: float
    block_bandwidth: float
    block_flops: float
    rows: int
    launch: float
    merge: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """waves: how often the blocks fill the device. seconds: the prediction."""

    bytes: float
    flops: float
    blocks: float
    waves: float
    seconds: float


_USUAL = Rates(4.2e12, 500e12, 40e9, 2e12, 128, 2.5e-6, 2.5e-6)
RATES = {
    "split_kv": Rates(4.25e12, 240e12, 38e9, 2.4e12, 16, 9.5e-6, 2.0e-6),
    "mma_tile": Rates(4.2e12, 342e12, 300e9, 1.75e12, 128, 6e-6, 4e-6),
    "wgmma_tile": Rates(4.2e12, 700e12, 300e9, 5.3e12, 128, 8e-6, 4e-6),
}
_SMS, _BLOCKS_AN_SM, _CLUSTER = 132, 2, 8


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
    keys = sum(_visible_keys(d, q, kv) for q, kv in _requests(d, found))
    pairs = sum(_pairs(d, q, kv) for q, kv in _requests(d, found))
    return Amount(plain + keys * float(d.kv_elements) * ITEMSIZE[d.kv_dtype], 2.0 * pairs * d.num_qo_heads * d.pair_elements)


def _requests(d: Any, lengths: Lengths) -> list[tuple[int, int]]:
    """(rows, keys) of each request."""
    kv = lengths.kv or ()
    return list(zip(lengths.q if lengths.q is not None else [1] * len(kv), kv, strict=True))


def _first_hidden(d: Any, row: float, q: int, kv: int) -> float:
    """Keys before the window of a row."""
    return max(0.0, row + kv - q - d.window_left) if d.window_left >= 0 else 0.0


def _visible_keys(d: Any, q: int, kv: int) -> float:
    """Keys that any row of a request sees."""
    return max(0.0, kv - _first_hidden(d, 0, q, kv)) if q else 0.0


def _pairs(d: Any, q: int, kv: int) -> float:
    """(row, key) pairs that are not masked: of a causal triangle its mean row, times the rows."""
    causal = getattr(d, "causal", False)
    seen = kv - (min(q, kv) - 1) / 2 * (min(q, kv) / q) if causal and q else float(kv)
    return q * max(0.0, min(seen, d.window_left + 1.0) if d.window_left >= 0 else seen)


def estimate(descriptor: Descriptor[Any], sku: KernelSku, target: Target, lengths: Lengths | None = None) -> Estimate:
    """What `sku` is predicted to take for these lengths (default: a full batch) on a GPU target."""
    d: Any = descriptor
    found, rates = lengths or lengths_of(Work(descriptor)), RATES.get(sku.impl, _USUAL)
    least = amount(descriptor, found)
    if not hasattr(descriptor, "kv_split"):
        seconds = rates.launch + max(least.bytes / rates.bandwidth, least.flops / rates.flops)
        return Estimate(least.bytes, least.flops, 0.0, 0.0, seconds)
    tiles = [tile for q, kv in _requests(descriptor, found) for tile in _tiles(descriptor, rates, q, kv)]
    sms = max(1, target.sm_count)
    slots = sms * _BLOCKS_AN_SM
    split = _Split.of(descriptor, sku, tiles, slots, rates.rows)
    partial = 8.0 * split.parts * (d.dim_vo + 1)
    padded = sum(2.0 * tile.count * rates.rows * tile.keys * (d.dim + d.dim_vo) for tile in tiles)
    scale = sms / _SMS
    moving = (least.bytes + partial) / (rates.bandwidth * scale)
    doing = padded / (rates.flops * scale) + partial / (rates.bandwidth * scale)
    longest = max(split.longest_bytes / rates.block_bandwidth, split.longest_flops / rates.block_flops)
    seconds = rates.launch + max(moving, doing, longest) + (rates.merge if split.parts else 0.0)
    return Estimate(least.bytes + partial, least.flops, split.blocks, split.blocks / slots, seconds)


@dataclass(frozen=True, slots=True)
class _Tile:
    """The query rows of one block, with every key they see. count: blocks alike, one for each KV head."""

    rows: float
    keys: float
    count: int


def _tiles(d: Any, rates: Rates, q: int, kv: int) -> Sequence[_Tile]:
    packed = q * d.group_size
    if not packed or not kv:
        return ()
    full, rest = divmod(packed, rates.rows)
    keys = _pairs(d, q, kv) / q
    return [_Tile(rows, keys, d.kv_heads * n) for rows, n in ((rates.rows, full), (rest, 1)) if rows and n]


@dataclass(frozen=True, slots=True)
class _Split:
    """blocks, the work of the longest, and rows of partial results that a second launch merges."""

    blocks: float
    longest_bytes: float
    longest_flops: float
    parts: float

    @staticmethod
    def of(d: Any, sku: KernelSku, tiles: Sequence[_Tile], slots: int, rows: int) -> _Split:
        facts = dict(sku.spec)
        mode, blocks = facts.get("split", "off"), float(sum(tile.count for tile in tiles))
        keys = max((tile.keys for tile in tiles), default=0.0)
        parts = 0.0
        if mode == "fixed":
            chunk = float(facts.get("chunk", d.kv_split if isinstance(d.kv_split, int) else keys or 1))
            parts = sum(tile.count * tile.rows * -(-tile.keys // chunk) for tile in tiles)
            blocks = sum(tile.count * -(-tile.keys // chunk) for tile in tiles)
            keys = min(keys, chunk)
        elif mode == "cluster":
            # The blocks of a cluster share a request and join their parts on the chip: no second launch, no partial results.
            blocks, keys = blocks * _CLUSTER, keys / _CLUSTER
        elif mode == "auto" and tiles:
            share = sum(tile.count * tile.keys for tile in tiles) / slots
            parts = sum(tile.count * tile.rows * max(1.0, tile.keys / max(share, 1.0)) for tile in tiles)
            blocks, keys = max(blocks, float(slots)), min(keys, max(share, 64.0))
        pair = keys * (d.dim + d.dim_vo)
        return _Split(blocks, pair * ITEMSIZE[d.kv_dtype], 2.0 * rows * pair, parts)


def regret(predicted: Mapping[Any, float], measured: Mapping[Any, float]) -> float:
    """How much longer than the best takes what was predicted to be best, as a share, over what was measured."""
    chosen = min(measured, key=lambda name: predicted[name])
    return measured[chosen] / min(measured.values()) - 1
