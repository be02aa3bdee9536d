"""What a decode is predicted to take: its cut into blocks, as the device makes it, and one stream of bytes for each.

The constants are of one H200, fitted together to the decode medians of tests/data/tune_fitted.json and of a run of
bench/decode.py; 256 MB are written before each call. docs/measuring.md says how they do on what they were not fitted to.
Pipelines of three or four blocks an SM (an fp8 cache, head_dim 64) and pieces are newer than those medians.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from opfacade.backends.cuda.attention.cost_pieces import LEAST_GRAINS, pieces
from opfacade.backends.cuda.attention.decode import within_reach
from opfacade.backends.cuda.attention.decode_block import PLAIN, usual_shape
from opfacade.backends.cuda.attention.facts import chunks_bound
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.core.waves import Predicted, drained
from opfacade.plans._attention.work import first_hidden


@dataclass(frozen=True, slots=True)
class _Rates:
    """Of a kernel. launch: seconds between two events around next to nothing, with the write-back of what was written before.
    merge: seconds, where a run has parts. turn: bytes that a block could have moved while one run of keys ends and the next one
    starts: about what it keeps on its way. block, device: bytes a second of one block at most, and of all together."""

    launch: float
    merge: float
    turn: float
    block: float
    device: float


# Those of latent decode are fitted to its 22 medians in tests/data/tune.json, all of 16 heads.
_DECODE = _Rates(7e-6, 4.5e-6, 30e3, 46.5e9, 4.77e12)
_LATENT = _Rates(10e-6, 0.6e-6, 67e3, 43e9, 3.06e12)
# Auto, pieces and fixed: each block adds up the lengths of the batch before it knows its work.
_SURVEY = 0.6e-6
# Even shares only: where a share starts is found first, and a block holds parts of two runs.
_SHARE = 2.7e-6
# A warp's stage of 16 keys: until it is here, and the products of 128 dimensions of it.
_STAGE, _STAGE_MATH = 0.64e-6, 0.20e-6
_STAGE_KEYS = 16
_SMS = 132
# Of the SMs, those that clusters reach, one block on each: they stay inside a group of SMs.
_IN_CLUSTERS = 0.85
# Seconds until several clusters that share a run have met.
_TEAMS_MEET = 1.1e-6
_GRAIN = 64  # keys; cuts lie at multiples of it


@dataclass(frozen=True, slots=True)
class Cut:
    """Blocks in the order of their start, bytes of each; rows of partial results; seconds besides."""

    sizes: list[float]
    slots: int
    parts: int = 0
    besides: float = 0.0


@dataclass(frozen=True, slots=True)
class _Run:
    """Keys that one request has one block of heads read. first: of them."""

    first: int
    end: int

    @property
    def grains(self) -> int:
        return max(1, -(-self.end // _GRAIN) - self.first // _GRAIN)

    @property
    def keys(self) -> int:
        return self.end - self.first // _GRAIN * _GRAIN


def predicted(descriptor: Any, sku: KernelSku, target: Target, lengths: Any, heads: int) -> Predicted:
    """heads: blocks of query heads that a request has."""
    time, runs = _seconds(descriptor, sku, target, lengths.kv or (), heads)
    partial = 8.0 * (descriptor.dim_vo + 1)  # of a row, written and read
    return Predicted(time, len(runs.sizes), runs.slots, partial * runs.parts * min(descriptor.group_size, 16))


def _seconds(descriptor: Any, sku: KernelSku, target: Target, kv: Sequence[int], heads: int) -> tuple[float, Cut]:
    """The prediction, and the cut it is of."""
    facts, rates = dict(sku.spec), _rates_of(descriptor)
    found = cut(descriptor, facts, target, kv, heads)
    alone = rates.block if rates is _LATENT else min(rates.block, _of_stages(descriptor, facts))
    device = rates.device * max(1, target.sm_count) / _SMS
    streamed = drained(found.sizes, found.slots, alone, device)
    return rates.launch + streamed + found.besides, found


def _rates_of(descriptor: Any) -> _Rates:
    return _LATENT if descriptor.op == "mla_decode" else _DECODE


def _of_stages(descriptor: Any, facts: dict[str, Any]) -> float:
    """Bytes a second of a block whose warps wait for one stage after another."""
    warps = int(facts.get("warps") or _usual(descriptor, facts).warps)
    dim = int(descriptor.dim)
    return warps * _STAGE_KEYS * 4 * dim / (_STAGE + _STAGE_MATH * dim / 128)


def _usual(descriptor: Any, facts: dict[str, Any]) -> Any:
    return usual_shape(descriptor, facts.get("split") == "cluster")


def cut(descriptor: Any, facts: dict[str, Any], target: Target, kv: Sequence[int], heads: int) -> Cut:
    """As kernels/attention/decode/schedule/cut.cuh and decode/schedule/schedule.cuh cut these lengths."""
    runs = [_Run(min(first_hidden(descriptor, 0, 1, n), n), n) for n in kv]
    sms = max(1, target.sm_count)
    row = descriptor.kv_elements * ITEMSIZE[descriptor.kv_dtype] / descriptor.kv_heads
    mode, rates = facts.get("split", "off"), _rates_of(descriptor)
    slots = sms * (1 if rates is _LATENT else int(facts.get("blocks") or _usual(descriptor, facts).blocks))
    if mode == "cluster":
        cluster = int(facts.get("cluster", PLAIN.cluster))
        return _over_clusters(runs, heads, row, (cluster, int(facts.get("teams", 1))), sms)
    if mode == "fixed":
        chunk = int(facts.get("chunk", descriptor.kv_split if isinstance(descriptor.kv_split, int) else _GRAIN))
        return _in_chunks(descriptor, runs, heads, row, chunk, slots)
    if mode == "pieces" and runs:
        return _in_pieces(descriptor, runs, heads, row, slots)
    if mode == "auto" and runs:
        return _evenly(descriptor, runs, heads, row, slots)
    return Cut([run.keys * row + rates.turn for run in runs for _ in range(heads)], slots)


def _part_bytes(descriptor: Any) -> float:
    """Written and read once: o and lse of one part, f32."""
    return float(8 * min(descriptor.group_size, 16) * (descriptor.dim + 1))


def _over_clusters(runs: list[_Run], heads: int, row: float, shared: tuple[int, int], sms: int) -> Cut:
    """shared: blocks of a cluster, and clusters of a run."""
    blocks, teams = shared[0] * shared[1], shared[1]
    shares = (min(-(-run.grains // blocks) * _GRAIN, run.keys) for run in runs)
    sizes = [keys * row + _DECODE.turn for keys in shares for _ in range(heads * blocks)]
    if teams == 1:
        return Cut(sizes, max(1, int(sms * _IN_CLUSTERS)))
    within = max(1, within_reach(sms, shared[0]))
    return Cut(sizes, within, len(runs) * heads * teams, _TEAMS_MEET)


def _in_chunks(descriptor: Any, runs: list[_Run], heads: int, row: float, chunk: int, slots: int) -> Cut:
    sizes, parts, rates = list[float](), 0, _rates_of(descriptor)
    for run in runs:
        cut = list(_chunks(run, chunk))
        parts += heads * len(cut) * (len(cut) > 1)
        partial = _part_bytes(descriptor) if len(cut) > 1 else 0.0
        sizes += [keys * row + rates.turn + partial for keys in cut for _ in range(heads)]
    sizes = _of_makers(descriptor, [len(list(_chunks(run, chunk))) for run in runs], sizes, heads, chunk)
    return Cut(sizes, slots, parts, _SURVEY + (rates.merge if parts else 0.0))


def _of_makers(descriptor: Any, counts: list[int], sizes: list[float], heads: int, chunk: int) -> list[float]:
    """The work of each CTA where slots are fewer than chunks: whole runs in turn.

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


def _chunks(run: _Run, chunk: int) -> Iterator[int]:
    """Keys of each chunk that has any; one without keys where there are none."""
    start = run.first // chunk * chunk
    while start < run.end or start == 0:
        yield max(0, min(run.end, start + chunk) - max(start, run.first // _GRAIN * _GRAIN))
        start += chunk


def _in_pieces(descriptor: Any, runs: list[_Run], heads: int, row: float, slots: int) -> Cut:
    sizes, parts, rates, partial = list[float](), 0, _rates_of(descriptor), _part_bytes(descriptor)
    for piece in pieces([run.grains for run in runs], heads, slots):
        run = runs[piece.request]
        keys = max(0, min(piece.end * _GRAIN, run.keys) - piece.first * _GRAIN)
        sizes += [keys * row + rates.turn + (partial if piece.parts > 1 else 0.0)] * heads
        parts += heads * (piece.parts > 1)
    return Cut(sizes, slots, parts, _SURVEY + (rates.merge if parts else 0.0))


def _evenly(descriptor: Any, runs: list[_Run], heads: int, row: float, slots: int) -> Cut:
    counts, rates = [run.grains for run in runs], _rates_of(descriptor)
    total = sum(counts) * heads
    share = even_share(total, len(runs) * heads, max(counts), slots)
    grain = row * sum(run.keys for run in runs) / sum(counts)  # mean: the last grain of a request is seldom full
    if share == 0:
        return Cut(_whole_runs([run.keys * row + rates.turn for run in runs for _ in range(heads)], slots), slots, 0, _SURVEY)
    items, begin = [0] * -(-total // share), 0
    for count in counts:
        for _ in range(heads):
            for block in range(begin // share, (begin + count - 1) // share + 1):
                items[block] += 1
            begin += count
    partial = _part_bytes(descriptor)
    sizes = [min(share, total - block * share) * grain + n * rates.turn + min(n, 2) * partial for block, n in enumerate(items)]
    return Cut(sizes, slots, sum(min(n, 2) for n in items), rates.merge + _SHARE)


def _whole_runs(sizes: list[float], slots: int) -> list[float]:
    """Block b of the grid takes runs b, b + blocks, and so on."""
    blocks = min(2 * slots, max(slots, len(sizes)))
    return [sum(sizes[block::blocks]) for block in range(min(blocks, len(sizes)))]


def even_share(grains: int, runs: int, most: int, blocks: int) -> int:
    """decode/schedule/cut.cuh: grains of each block, or 0 where runs stay whole."""
    rounds = -(-runs // blocks)
    if 8 * grains >= 7 * rounds * most * blocks:
        return 0
    share = max(LEAST_GRAINS, -(-grains // blocks))
    if runs * most != grains or share >= most:
        return share
    parts = most // share
    divided = -(-most // parts)
    return divided if divided <= share + share // 16 and divided * parts == most else share
