"""Cost model of prefill: row tiles, longest first, each as long as its keys; then the merge of splits.

The constants are fitted to one H200, from the prefills of tests/data/tune_fitted.json and, for wgmma_tile, of
tests/data/prefill.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from opfacade.backends.cuda.attention import prefill
from opfacade.backends.cuda.attention.prefill_sm90 import tile_of
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.core.waves import Predicted, drained
from opfacade.plans._attention.work import first_hidden, requests_of
from opfacade.plans.attention import BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor

Prefill = BatchPagedPrefillDescriptor | BatchRaggedPrefillDescriptor


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of an implementation. block, device: products and sums a second, of one CTA alone and of all.

    blocks: CTAs an SM. turn: seconds between two row tiles. launch: seconds of the first launch.
    """

    block: float
    device: float
    blocks: int
    turn: float
    launch: float


# One CTA of wgmma_tile over a long row tile: 4.5 TFLOP/s alone, 5.5 in full waves. CTAs slow each other little, unlike two CTAs
# of mma_tile on an SM, which share its tensor cores. fp8 products: 776 TFLOP/s, bf16 products: 667, both on 8192 causal rows.
_WGMMA = {"wgmma_tile": Rates(4.9e12, inf, 1, 2e-6, 12e-6), "wgmma_fp8_tile": Rates(5.7e12, inf, 1, 2e-6, 12e-6)}
# Relative rate of tiles of 64 keys where the default has more, and of warpgroups without ping-pong.
_FEW_KEYS, _NO_PING_PONG = 0.91, 0.985
_MMA = Rates(1.9e12, 310e12, 2, 2.5e-6, 6e-6)
_SMS = 132
_BANDWIDTH = 4.2e12
# Seconds of the second launch, seconds of each row of a head, and bytes of partials that fit in L2. More bytes cost time.
_MERGE, _MERGED_ROW, _IN_L2 = 3e-6, 0.4e-9, 40e6
_LEAST_CUT = 512  # keys: kernels/attention/prefill_sm90/cut.cuh
# Seconds to find that a tile has no key in a split.
_NO_KEYS = 0.4e-6


@dataclass(frozen=True, slots=True)
class PrefillLoad:
    """sizes: keys of each row tile that has any, of every kv head and split. parts: rows of partial results."""

    sizes: list[int]
    empty: int
    parts: int


def rates_of(sku: KernelSku) -> Rates:
    """Rates of the SKU's implementation, adjusted for its tuning config."""
    rates, facts = _WGMMA.get(sku.impl, _MMA), dict(sku.spec)
    slower = _FEW_KEYS if facts.get("tile_keys") else _NO_PING_PONG if facts.get("turns") is False else 1.0
    return replace(rates, block=rates.block * slower)


def predicted(descriptor: Prefill, sku: KernelSku, target: Target, lengths: Any, least_bytes: float) -> Predicted:
    """least_bytes: minimal bytes of the problem."""
    rates, sms = rates_of(sku), max(1, target.sm_count)
    time, tiles = _seconds(descriptor, sku, target, lengths)
    time = max(time, rates.launch + least_bytes / (_BANDWIDTH * sms / _SMS))
    partial = 8.0 * (descriptor.dim_vo + 1)  # bytes a row, written and read
    return Predicted(time, len(tiles.sizes), sms * rates.blocks, partial * tiles.parts)


def _seconds(descriptor: Prefill, sku: KernelSku, target: Target, lengths: Any) -> tuple[float, PrefillLoad]:
    """The prediction without the bytes of the problem, and its partition."""
    rates, sms, width = rates_of(sku), max(1, target.sm_count), descriptor.dim + descriptor.dim_vo
    rows, _ = _tile(sku, descriptor)
    found = cut(descriptor, sku, target, lengths)
    work = sorted((2.0 * rows * width * keys + rates.turn * rates.block for keys in found.sizes), reverse=True)
    scale = sms / _SMS
    time = drained(work, sms * rates.blocks, rates.block, rates.device * scale) + found.empty * _NO_KEYS / (sms * rates.blocks)
    if found.parts:
        moved = 2 * max(0.0, _row_bytes(descriptor) * found.parts - _IN_L2)
        merged = sum(lengths.q or ()) * descriptor.num_qo_heads * descriptor.dim_vo / 128
        time += _MERGE + (merged * _MERGED_ROW + moved / _BANDWIDTH) / scale
    return rates.launch + time, found


def _tile(sku: KernelSku, descriptor: Prefill) -> tuple[int, int]:
    """Rows and keys of a tile."""
    dim = descriptor.dim
    if sku.impl in _WGMMA:
        tile = tile_of(dim, descriptor.kv_dtype)
        return tile.rows, int(dict(sku.spec).get("tile_keys") or tile.keys)
    usual = prefill.TILES.get(dim, prefill.TILES[128])  # the reference takes any head_dim
    return usual.rows, usual.keys


def _row_bytes(descriptor: Prefill) -> float:
    return float(4 * (descriptor.dim_vo + 1))


def cut(descriptor: Prefill, sku: KernelSku, target: Target, lengths: Any) -> PrefillLoad:
    facts, (rows, step) = dict(sku.spec), _tile(sku, descriptor)
    mode = str(facts.get("split", "off"))
    splits, chunk = _splits(descriptor, target, mode, facts.get("chunk"))
    heads, group = descriptor.kv_heads, descriptor.group_size
    sizes, empty, parts = list[int](), 0, 0
    for q, kv in requests_of(descriptor, lengths):
        for packed in range(0, q * group, rows):
            begin, end = _visible(descriptor, packed // group, min(q, (packed + rows - 1) // group + 1), q, kv)
            held = min(q * group - packed, rows)
            share = chunk or -(-(-(-end // step) - begin // step) // splits) * step
            mine = [keys * step for keys in _parts(begin, end, step, share, 0 if chunk else begin // step * step) if keys]
            sizes += mine * heads
            empty += (splits - len(mine)) * heads
            parts += len(mine) * heads * held * (mode in ("auto", "fixed"))
    return PrefillLoad(_shared(sizes, target) if mode == "pieces" else sizes, empty, parts)


def _shared(sizes: list[int], target: Target) -> list[int]:
    """Long tiles in equal shares: kernels/attention/prefill_sm90/cut.cuh. The CTAs merge them, in little time."""
    share = max(-(-sum(sizes) // max(1, target.sm_count)), _LEAST_CUT)
    return [min(share, keys - begin) for keys in sizes for begin in range(0, keys, share)]


def _splits(descriptor: Prefill, target: Target, mode: str, said: Any) -> tuple[int, int]:
    """(number, tokens) of the splits; tokens 0: an even share of each tile's keys."""
    if mode == "auto":
        return max(1, prefill.splits_of(descriptor, target)[1]), 0
    if mode != "fixed":
        return 1, 0
    tokens = descriptor.request_token_bound
    chunk = int(said or (descriptor.kv_split if isinstance(descriptor.kv_split, int) else tokens or 1))
    return max(1, -(-tokens // chunk)), chunk


def _visible(descriptor: Prefill, row: int, last: int, q: int, kv: int) -> tuple[int, int]:
    """Keys that rows from `row` up to `last` see."""
    end = min(kv, max(0, kv - q + last)) if descriptor.causal else kv
    return min(first_hidden(descriptor, row, q, kv), end), end


def _parts(begin: int, end: int, step: int, share: int, start: int) -> Iterator[int]:
    """Key tiles of each split between `begin` and `end`; splits have `share` keys from `start` on."""
    for lower in range(start + (begin - start) // max(1, share) * share, end, max(1, share)):
        yield -(-min(end, lower + share) // step) - max(begin, lower) // step
