"""Cost model of decode: the partition of the device code, and one stream of bytes for each CTA.

The constants are fitted to one H200: decode medians of tests/data/tune_fitted.json and one run of bench/decode.py,
with 256 MB written before each call. docs/measuring.md has the error on other problems. Pipelines of three or four CTAs an SM
(fp8 cache, head_dim 64) and pieces are newer than these medians.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from opfacade.backends.cuda.attention.cost_pieces import MIN_SHARE_TILES, splits
from opfacade.backends.cuda.attention.decode import clusterable_sms
from opfacade.backends.cuda.attention.decode_block import DEFAULT, default_shape
from opfacade.backends.cuda.attention.facts import chunks_bound
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.core.waves import Predicted, drained
from opfacade.plans._attention.work import first_hidden, rows_each


@dataclass(frozen=True, slots=True)
class _Rates:
    """Rates of a kernel. launch: seconds of an almost empty launch, with the write-back of earlier writes. merge: seconds, if a
    work unit has partials. turn: bytes that a CTA could have moved between two work units, about its bytes in flight. block,
    device: bytes a second of one CTA, and of all together."""

    launch: float
    merge: float
    turn: float
    block: float
    device: float


# Latent decode: fitted to its 22 medians in tests/data/tune.json, all with 16 heads.
_DECODE = _Rates(7e-6, 4.5e-6, 30e3, 46.5e9, 4.77e12)
_LATENT = _Rates(10e-6, 0.6e-6, 67e3, 43e9, 3.06e12)
# Auto, pieces and fixed: seconds of the length scan of a CTA.
_SURVEY = 0.6e-6
# Even shares only: seconds of the search for a share's start, and of a second unit in part.
_SHARE = 2.7e-6
# A warp's stage of 16 keys: seconds of its load, and of its products at 128 dimensions.
_STAGE, _STAGE_MATH = 0.64e-6, 0.20e-6
_STAGE_KEYS = 16
_SMS = 132
# Share of the SMs that clusters can occupy, one CTA an SM: a cluster must fit into one GPC.
_IN_CLUSTERS = 0.85
# Seconds of the synchronisation of several clusters of a work unit.
_CLUSTERS_MEET = 1.1e-6
_TILE_KEYS = 64  # keys of a scheduling tile


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """Bytes of each CTA in the order of their start; rows of partial results; additional seconds."""

    sizes: list[float]
    slots: int
    parts: int = 0
    besides: float = 0.0


@dataclass(frozen=True, slots=True)
class _WorkUnit:
    """Keys that one head block of a request reads. first: the first of them."""

    first: int
    end: int

    @property
    def tiles(self) -> int:
        return max(1, -(-self.end // _TILE_KEYS) - self.first // _TILE_KEYS)

    @property
    def keys(self) -> int:
        return self.end - self.first // _TILE_KEYS * _TILE_KEYS


def predicted(descriptor: Any, sku: KernelSku, target: Target, lengths: Any, heads: int) -> Predicted:
    """heads: query head blocks of a request."""
    time, units = _seconds(descriptor, sku, target, lengths.kv or (), heads)
    partial = 8.0 * (descriptor.dim_vo + 1)  # bytes a row, written and read
    return Predicted(time, len(units.sizes), units.slots, partial * units.parts * min(descriptor.group_size, 16))


def _seconds(descriptor: Any, sku: KernelSku, target: Target, kv: Sequence[int], heads: int) -> tuple[float, DecodeLoad]:
    """The prediction, and its partition."""
    facts, rates = dict(sku.spec), _rates_of(descriptor)
    found = cut(descriptor, facts, target, kv, heads)
    alone = rates.block if rates is _LATENT else min(rates.block, _of_stages(descriptor, facts))
    device = rates.device * max(1, target.sm_count) / _SMS
    streamed = drained(found.sizes, found.slots, alone, device)
    return rates.launch + streamed + found.besides, found


def _rates_of(descriptor: Any) -> _Rates:
    return _LATENT if descriptor.op == "mla_decode" else _DECODE


def _of_stages(descriptor: Any, facts: dict[str, Any]) -> float:
    """Bytes a second of a CTA whose warps wait for each stage."""
    warps = int(facts.get("warps") or _usual(descriptor, facts).warps)
    dim = int(descriptor.dim)
    return warps * _STAGE_KEYS * 4 * dim / (_STAGE + _STAGE_MATH * dim / 128)


def _usual(descriptor: Any, facts: dict[str, Any]) -> Any:
    return default_shape(descriptor, facts.get("split") == "cluster")


def cut(descriptor: Any, facts: dict[str, Any], target: Target, kv: Sequence[int], heads: int) -> DecodeLoad:
    """The partition of these lengths, as in kernels/attention/decode/schedule/cut.cuh and decode/schedule/schedule.cuh."""
    units = [_WorkUnit(min(first_hidden(descriptor, 0, rows_each(descriptor), n), n), n) for n in kv]
    sms = max(1, target.sm_count)
    row = descriptor.kv_elements * ITEMSIZE[descriptor.kv_dtype] / descriptor.kv_heads
    mode, rates = facts.get("split", "off"), _rates_of(descriptor)
    slots = sms * (1 if rates is _LATENT else int(facts.get("blocks") or _usual(descriptor, facts).blocks))
    if mode == "cluster":
        cluster = int(facts.get("cluster", DEFAULT.cluster))
        return _cluster_load(units, heads, row, (cluster, int(facts.get("teams", 1))), sms)
    if mode == "fixed":
        chunk = int(facts.get("chunk", descriptor.kv_split if isinstance(descriptor.kv_split, int) else _TILE_KEYS))
        return _in_chunks(descriptor, units, heads, row, chunk, slots)
    if mode == "pieces" and units:
        return _in_pieces(descriptor, units, heads, row, slots)
    if mode == "auto" and units:
        return _evenly(descriptor, units, heads, row, slots)
    return DecodeLoad([unit.keys * row + rates.turn for unit in units for _ in range(heads)], slots)


def _part_bytes(descriptor: Any) -> float:
    """Bytes of o and lse of one partial in f32, written and read once."""
    return float(8 * min(descriptor.group_size, 16) * (descriptor.dim + 1))


def _cluster_load(units: list[_WorkUnit], heads: int, row: float, shared: tuple[int, int], sms: int) -> DecodeLoad:
    """shared: CTAs a cluster, and clusters a work unit."""
    blocks, clusters = shared[0] * shared[1], shared[1]
    shares = (min(-(-unit.tiles // blocks) * _TILE_KEYS, unit.keys) for unit in units)
    sizes = [keys * row + _DECODE.turn for keys in shares for _ in range(heads * blocks)]
    if clusters == 1:
        return DecodeLoad(sizes, max(1, int(sms * _IN_CLUSTERS)))
    within = max(1, clusterable_sms(sms, shared[0]))
    return DecodeLoad(sizes, within, len(units) * heads * clusters, _CLUSTERS_MEET)


def _in_chunks(descriptor: Any, units: list[_WorkUnit], heads: int, row: float, chunk: int, slots: int) -> DecodeLoad:
    sizes, parts, rates = list[float](), 0, _rates_of(descriptor)
    for unit in units:
        cut = list(_chunks(unit, chunk))
        parts += heads * len(cut) * (len(cut) > 1)
        partial = _part_bytes(descriptor) if len(cut) > 1 else 0.0
        sizes += [keys * row + rates.turn + partial for keys in cut for _ in range(heads)]
    sizes = _owned_units(descriptor, [len(list(_chunks(unit, chunk))) for unit in units], sizes, heads, chunk)
    return DecodeLoad(sizes, slots, parts, _SURVEY + (rates.merge if parts else 0.0))


def _owned_units(descriptor: Any, counts: list[int], sizes: list[float], heads: int, chunk: int) -> list[float]:
    """Bytes of each CTA if slots are fewer than chunks: whole units round-robin.

    As kernels/attention/decode/schedule/chunks.cuh does.
    """
    units = chunks_bound(descriptor, chunk)
    if sum(counts) <= units:
        return sizes
    makers, of_runs, at = max(1, units * heads // max(counts)), list[float](), 0
    for count in counts:
        own = sum(sizes[at : at + count * heads]) / heads
        of_runs, at = of_runs + [own] * heads, at + count * heads
    return [sum(of_runs[maker::makers]) for maker in range(min(makers, len(of_runs)))]


def _chunks(unit: _WorkUnit, chunk: int) -> Iterator[int]:
    """Keys of each chunk; one empty chunk if there are no keys."""
    start = unit.first // chunk * chunk
    while start < unit.end or start == 0:
        yield max(0, min(unit.end, start + chunk) - max(start, unit.first // _TILE_KEYS * _TILE_KEYS))
        start += chunk


def _in_pieces(descriptor: Any, units: list[_WorkUnit], heads: int, row: float, slots: int) -> DecodeLoad:
    sizes, parts, rates, partial = list[float](), 0, _rates_of(descriptor), _part_bytes(descriptor)
    for piece in splits([unit.tiles for unit in units], heads, slots):
        unit = units[piece.request]
        keys = max(0, min(piece.end * _TILE_KEYS, unit.keys) - piece.first * _TILE_KEYS)
        sizes += [keys * row + rates.turn + (partial if piece.parts > 1 else 0.0)] * heads
        parts += heads * (piece.parts > 1)
    return DecodeLoad(sizes, slots, parts, _SURVEY + (rates.merge if parts else 0.0))


def _evenly(descriptor: Any, units: list[_WorkUnit], heads: int, row: float, slots: int) -> DecodeLoad:
    counts, rates = [unit.tiles for unit in units], _rates_of(descriptor)
    total = sum(counts) * heads
    share = even_share(total, len(units) * heads, max(counts), slots)
    tile = row * sum(unit.keys for unit in units) / sum(counts)  # mean: the last tile of a request is seldom full
    if share == 0:
        return DecodeLoad(
            _whole_units([unit.keys * row + rates.turn for unit in units for _ in range(heads)], slots), slots, 0, _SURVEY
        )
    items, begin = [0] * -(-total // share), 0
    for count in counts:
        for _ in range(heads):
            for block in range(begin // share, (begin + count - 1) // share + 1):
                items[block] += 1
            begin += count
    partial = _part_bytes(descriptor)
    sizes = [min(share, total - block * share) * tile + n * rates.turn + min(n, 2) * partial for block, n in enumerate(items)]
    return DecodeLoad(sizes, slots, sum(min(n, 2) for n in items), rates.merge + _SHARE)


def _whole_units(sizes: list[float], slots: int) -> list[float]:
    """CTA b takes units b, b + CTAs, and so on."""
    blocks = min(2 * slots, max(slots, len(sizes)))
    return [sum(sizes[block::blocks]) for block in range(min(blocks, len(sizes)))]


def even_share(tiles: int, units: int, most: int, blocks: int) -> int:
    """As in decode/schedule/cut.cuh: tiles of each CTA, or 0 if units stay whole."""
    rounds = -(-units // blocks)
    if 8 * tiles >= 7 * rounds * most * blocks:
        return 0
    share = max(MIN_SHARE_TILES, -(-tiles // blocks))
    if units * most != tiles or share >= most:
        return share
    parts = most // share
    divided = -(-most // parts)
    return divided if divided <= share + share // 16 and divided * parts == most else share
