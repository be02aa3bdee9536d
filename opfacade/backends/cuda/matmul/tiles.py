"""Which tile a product has: the one that a model of waves finds fastest. No tile changes a bit, so that rows may decide."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

_SHARED, _ALL_SHARED = 200 * 1024, 227 * 1024  # bytes of all stages, and of a CTA
_PANEL = 128  # bytes of k
# Fitted to times of every tile on an H100 and an H200 (bench/results/matmul_tiles.json); splits are not in it.
_CYCLES = 1.72  # a nanosecond
_CHAIN = 124  # cycles of the four steps of a panel at least: each waits for the one before
_BYTES, _PART = 2.365, 207  # cycles of a column of a panel of 8-bit floats, whose parts are added; of a panel at least
_NARROW = 0.96  # of the rate of memory, where few rows read 128 bytes of each row of the weight at a time
_MEMORY, _WEIGHT_OF_ONE, _ONE_SM = 2484.0, 100.0, 105.5  # bytes a nanosecond: of all SMs, of weights that one SM gets, of both
_TILE, _STORE = 310.0, 0.09  # nanoseconds of a tile, and of an element of a tile
_CLUSTER = 233.0  # nanoseconds of a tile whose CTAs wait for each other
_CLUSTERED = {4: 0.9, 8: 0.8}  # of all SMs: clusters of so many CTAs do not fit everywhere
_SUM = 700.0  # nanoseconds of the sum of a cluster: half to 1.4 microseconds (bench/results/matmul_probes.json)


class Tile(NamedTuple):
    """rows: of x, 64 for each computing warpgroup; columns: of the product; panels: parts of 128 bytes of k in a stage;
    cluster: CTAs with tiles one below the other, which share the weight; split: CTAs of a cluster with one tile, each for a
    segment of k; swapped: rows are those that a tile has at most, and 64 columns lie in each computing warpgroup."""

    rows: int
    columns: int
    panels: int
    cluster: int = 1
    split: int = 1
    swapped: bool = False

    @property
    def stage(self) -> int:
        """Bytes."""
        return self.panels * _PANEL * (self.rows + self.columns)

    @property
    def stages(self) -> int:
        return stages_of(self, 1)


def stages_of(tile: Tile, terms: int, factors: bool = False) -> int:
    """Stages that fit, of a large tile beside all of its results if these are four. terms: operands in one that a weight is the
    sum of; factors: of each row and part of k, beside a stage, in f32."""
    stage = tile.panels * _PANEL * (tile.rows + terms * tile.columns)
    beside = (_ALL_SHARED - 1024 - 2 * tile.rows * tile.columns) // (stage + (4 * tile.panels * tile.rows if factors else 0))
    most = min(12, _SHARED // stage)
    return beside if tile.rows >= 128 and 4 <= beside < most else most


TILES = (
    Tile(128, 256, 1, 2), Tile(128, 256, 1), Tile(128, 192, 1), Tile(128, 128, 1), Tile(128, 64, 1),
    Tile(64, 256, 1), Tile(64, 192, 1), Tile(64, 128, 2), Tile(64, 64, 2), Tile(64, 32, 2),
)  # fmt: skip
HALVES = (
    Tile(192, 192, 1),
    Tile(192, 160, 1),
    Tile(192, 128, 1),
    Tile(128, 224, 1),
    Tile(128, 160, 1),
    Tile(64, 160, 1),
)  # of 16-bit operands: fewer waves where n is no multiple of 192
SPLIT = (Tile(64, 32, 2), Tile(64, 64, 2))


# Rows lie on N of wgmma, in steps of eight: few of x are loaded beside many of the weight.
SWAPPED = (Tile(64, 128, 2, swapped=True), Tile(64, 64, 2, swapped=True))


class Sizes(NamedTuple):
    rows: int
    columns: int
    k: int
    batch: int
    least: int = 32  # columns of a tile; a weight whose columns lie along panels has 64 in one
    size: int = 2  # bytes of an element
    segments: int = 1  # of k that are summed apart
    parts: bool = False  # a chain ends with each panel, as those of fp8 do
    copied: float = 0.0  # bytes a nanosecond that the threads of a CTA copy, where TMA cannot load operands


class _Work(NamedTuple):
    """All that the time of a tile depends on, except the rows of a product.

    height: rows of a cluster; across: tiles of one row of clusters; resident: clusters that run at once; of_k: bytes of k that
    a CTA multiplies, whole stages; cycles: of a panel; columns, line: of the product, and bytes of a row of an operand in all
    products; share: columns that each CTA of a cluster loads; each: nanoseconds of a tile besides products and loads, and once
    for all; narrow: bytes a nanosecond of memory for few rows; copied: bytes a nanosecond of threads, in lines of an operand.
    """

    tile: Tile
    height: int
    across: int
    resident: int
    of_k: int
    cycles: float
    columns: int
    line: int
    share: float
    each: float
    once: float
    narrow: float
    copied: float
    round: tuple[float, float, float]  # nanoseconds of a round of full tiles: products, what an SM gets, and the rest


class _Works(NamedTuple):
    """The tiles of all products that differ in rows alone. last: the index of the fastest at the last number of rows. by_rate:
    the nanoseconds that each row of many takes at least (0: unknown), those that the first ones take, and the index, the
    smallest first. high: rows that no cluster has more of."""

    works: tuple[_Work, ...]
    last: list[int]
    by_rate: tuple[tuple[float, float, int], ...]
    high: int


def _of(works: tuple[_Work, ...]) -> _Works:
    rates = sorted((*_rates(work), at) for at, work in enumerate(works))
    return _Works(works, [0], tuple(rates), max([work.height for work in works], default=0))


def _rates(work: _Work) -> tuple[float, float]:
    """Nanoseconds of a row and of a round: with whole rounds of full tiles, and memory that is never waited for."""
    products, one_sm, rest = work.round
    of_round = (1 - 1e-9) * (rest + 0.05 * (products + one_sm) + 0.95 * max(products, one_sm))  # no rounding makes it too large
    return of_round * work.across / (work.height * work.resident), of_round


@lru_cache(maxsize=4096)
def tile_of(sizes: Sizes, sms: int) -> Tile:
    return _fastest(_running(sizes, sms), sizes.rows)


def tiles_by_time(sizes: Sizes, sms: int) -> list[Tile]:
    """All of them, the fastest first."""
    works = sorted(_running(sizes, sms).works, key=lambda work: _time(work, sizes.rows))
    return [work.tile for work in works]


def _running(sizes: Sizes, sms: int) -> _Works:
    """Without splits whose CTAs, which wait for each other, would not run at once."""
    works = _works(sizes[1:], sms)
    if sizes.segments == 1:
        return works
    running = tuple([work for work in works.works if work.tile.split == 1 or _resident(work, sizes.rows, sms)])
    return _Works(running, [0], tuple([(0.0, 0.0, at) for at in range(len(running))]), 0)


@lru_cache(maxsize=4096)
def whole_tile_of(sizes: Sizes, sms: int, alone: bool) -> Tile:
    """The fastest without a split. alone: without a cluster too."""
    return _fastest(_whole_works(sizes[1:], sms, alone), sizes.rows)


@lru_cache(maxsize=4096)
def swapped_tile_of(sizes: Sizes, sms: int) -> Tile:
    """The faster one of those whose rows lie on N."""
    return min(SWAPPED, key=lambda tile: nanoseconds(tile, sizes, sms))


def nanoseconds(tile: Tile, sizes: Sizes, sms: int) -> float:
    """The longest of products, of what an SM gets and of memory, and part of the others: they do not overlap in full."""
    return _time(_work(tile, sizes, sms), sizes.rows)


def _fastest(of: _Works, rows: int) -> Tile:
    """The first of the fastest. The last one is timed first: one that is slower even in part is not timed. With
    many rows, the search ends at the first tile whose rate is too slow."""
    works, [last], by_rate, high = of
    best, least, memory = last, _time(works[last], rows), (rows + works[0].columns) * works[0].line / _MEMORY
    for rate, one, at in by_rate:
        if rows > high:
            if rate * rows > least:
                break  # and so are all that follow
            if one > least:
                continue
        if at == last:
            continue
        work = works[at]
        if rows > work[1]:
            rounds = -(-(-(-rows // work[1]) * work[2]) // work[3])
            products, one_sm, rest = work[13]
            longest = rounds * (products if products > one_sm else one_sm)
            if rounds * (rest + 0.05 * (products + one_sm)) + 0.95 * (longest if longest > memory else memory) > least:
                continue
        time = _time(work, rows)
        if time < least or (time == least and at < best):
            best, least = at, time
    of.last[0] = best
    return works[best].tile


@lru_cache(maxsize=1024)
def _works(rest: tuple[Any, ...], sms: int) -> _Works:
    """rest: the sizes besides rows, which alone differ between the steps of a server."""
    sizes = Sizes(0, *rest)
    return _of(tuple(_work(tile, sizes, sms) for tile in (*_fitting(sizes, sms), *_of_halves(sizes))))


@lru_cache(maxsize=1024)
def _whole_works(rest: tuple[Any, ...], sms: int, alone: bool) -> _Works:
    sizes = Sizes(0, *rest)
    whole = (tile for tile in _fitting(sizes, sms) if tile.split == 1 and (tile.cluster == 1 or not alone))
    return _of(tuple(_work(tile, sizes, sms) for tile in whole))


def _of_halves(sizes: Sizes) -> tuple[Tile, ...]:
    return HALVES if sizes.size == 2 and sizes.segments == 1 and sizes.least == 32 else ()


def _fitting(sizes: Sizes, sms: int) -> Iterator[Tile]:
    """Tiles whose sums fit registers. Sums of parts and of segments need twice the registers."""
    most = 128 if sizes.parts or sizes.segments > 1 else 256
    for tile in TILES:
        whole = sizes.least == 32 or tile.columns // tile.cluster % sizes.least == 0
        if whole and tile.cluster <= max(1, sms) and tile.columns <= most:
            yield tile
    for tile in SPLIT if sizes.segments > 1 else ():
        if tile.columns >= sizes.least:
            yield tile._replace(split=sizes.segments)
            if sizes.segments > 4:  # each CTA has two
                yield tile._replace(split=-(-sizes.segments // 2))


def _work(tile: Tile, sizes: Sizes, sms: int) -> _Work:
    stage, line = _PANEL * tile.panels, sizes.k * sizes.size
    of_column, least = (_BYTES, _PART) if sizes.parts else (2.0, _CHAIN)
    wait = _CLUSTER if tile.cluster > 1 else 0.0
    of_k, cycles = -(-line // (stage * tile.split)) * stage, max(tile.rows // 64 * of_column * tile.columns, least)
    each = _TILE + _STORE * tile.rows * tile.columns + wait
    products, one_sm = of_k / _PANEL * cycles / _CYCLES, (tile.rows + tile.columns) * of_k / _ONE_SM
    return _Work(
        tile=tile,
        height=tile.rows * tile.cluster,
        across=-(-sizes.columns // tile.columns) * sizes.batch,
        resident=max(1, sms // (tile.cluster * tile.split)),
        of_k=of_k,
        cycles=cycles,
        columns=sizes.columns,
        line=line * sizes.batch,
        share=tile.columns / tile.cluster,
        each=each,
        once=_SUM if tile.split > 1 else 0.0,
        narrow=_NARROW * _MEMORY if tile.panels == 1 else _MEMORY,
        copied=sizes.copied / line * tile.split if sizes.copied else 0.0,
        round=(products, one_sm, each),
    )


def _resident(work: _Work, rows: int, sms: int) -> bool:
    """Whether all clusters of a split run at once."""
    split = work.tile.split
    return _tiles(work, rows) * split <= _CLUSTERED[4 if split <= 4 else 8] * sms


def _tiles(work: _Work, rows: int) -> int:
    """As many as clusters take."""
    return -(-rows // work.height) * work.across


def _time(work: _Work, rows: int) -> float:
    """Unpacked, because a selection asks this of each tile."""
    tile, height, across, resident, of_k, cycles, columns, line, share, each, once, narrow, copied, _ = work
    rounds = max(1, -(-(-(-rows // height) * across) // resident))
    of_k *= rounds
    products = of_k / _PANEL * cycles / _CYCLES  # of the last CTA
    own = rows if rows < tile[0] else tile[0]
    one_sm = (own + tile[1]) * of_k / _ONE_SM  # bytes of both operands that an SM gets
    if rows <= height:  # weights come from memory, and slower
        one_sm = max(one_sm, share * of_k / _WEIGHT_OF_ONE)
    memory = (rows + columns) * line / (narrow if rows <= 64 else _MEMORY)
    # By the threads of the last CTA: CTAs of a cluster share none.
    copies = rounds * (own + min(tile[1], columns)) / copied if copied else 0.0
    total = products + one_sm + memory + copies
    return 0.95 * max(products, one_sm, memory, copies) + 0.05 * total + rounds * each + once
