"""The tile of a product: the fastest one in a model of waves of CTAs. Tiles do not change bits, so the choice may depend on the
number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

_SHARED, _ALL_SHARED = 200 * 1024, 227 * 1024  # bytes for all stages, and per CTA
_PANEL = 128  # bytes of k per panel
# Fitted to times of every tile without a split on an H100 and an H200 (bench/results/matmul_tiles.json).
_CYCLES = 1.72  # cycles per ns
_CHAIN = 124  # minimum cycles per panel, because its four steps depend on each other
_BYTES, _PART = 2.365, 207  # for 8-bit floats, whose parts are added: cycles per column of a panel; minimum per panel
_NARROW = 0.96  # factor for the memory rate if few rows read 128 bytes of each weight row at a time
_MEMORY, _WEIGHT_OF_ONE, _ONE_SM = 2484.0, 100.0, 105.5  # bytes per ns: all SMs; weights per SM; both per SM
_TILE, _STORE = 310.0, 0.09  # ns per tile, and per element of a tile
_CLUSTER = 233.0  # ns per tile whose CTAs wait for each other
_CLUSTERED = {4: 0.9, 8: 0.8}  # CTAs per cluster -> fraction of SMs that such clusters can use
_SUM = 700.0  # ns of the sum of a cluster: 0.5 to 1.4 us (bench/results/matmul_probes.json)


class Tile(NamedTuple):
    """rows: rows of x, 64 per computing warpgroup. columns: columns of the product. panels: 128-byte parts of k per stage.
    cluster: CTAs with vertically adjacent tiles, which share the weight. split: CTAs of a cluster that share one tile, each
    with a segment of k. swapped: rows of x are on N of wgmma: `rows` is a maximum, and each computing warpgroup has 64
    columns."""

    rows: int
    columns: int
    panels: int
    cluster: int = 1
    split: int = 1
    swapped: bool = False

    @property
    def stage(self) -> int:
        """Bytes per stage."""
        return self.panels * _PANEL * (self.rows + self.columns)

    @property
    def stages(self) -> int:
        return stages_of(self, 1)


def stages_of(tile: Tile, terms: int, factors: bool = False) -> int:
    """The number of stages that fit in shared memory. For a large tile, it leaves space for all results if four stages still
    fit. terms: operands per stage whose sum is the weight. factors: whether a stage also contains f32 scales per row and part
    of k."""
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
)  # for 16-bit operands: fewer waves if n is not a multiple of 192
SPLIT = (Tile(64, 32, 2), Tile(64, 64, 2))


# Rows of x are on N of wgmma, in steps of eight: few rows of x are loaded with many columns of the weight.
SWAPPED = (Tile(64, 128, 2, swapped=True), Tile(64, 64, 2, swapped=True))


class Sizes(NamedTuple):
    rows: int
    columns: int
    k: int
    batch: int
    least: int = 32  # minimum columns of a tile; 64 if the columns of the weight are contiguous
    size: int = 2  # bytes per element
    segments: int = 1  # segments of k that are summed separately
    parts: bool = False  # whether a chain of additions ends with each panel, as in fp8
    copied: float = 0.0  # bytes per ns that threads of a CTA copy, if TMA cannot load operands


class _Work(NamedTuple):
    """Everything that the time of a tile depends on, except the rows of the product.

    height: rows per cluster. across: tiles per row of clusters. resident: clusters that run concurrently. of_k: bytes of k per
    CTA, in whole stages. cycles: cycles per panel. columns: columns of the product. line: bytes per row of an operand, over the
    batch. share: columns that each CTA of a cluster loads. each: ns per tile besides products and loads. once: ns per product.
    narrow: memory rate for few rows, in bytes per ns. copied: lines of an operand that threads copy per ns.
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
    round: tuple[float, float, float]  # ns per wave of full tiles: products, loads of an SM, and the rest


class Works(NamedTuple):
    """The tiles of all products that differ in rows alone. last: the index of the fastest tile for the previous number of rows.
    by_rate: (lower bound of the nanoseconds per row if there are many, 0: unknown; lower bound of the nanoseconds of one round;
    index of the tile), sorted. high: the largest number of rows of a cluster."""

    works: tuple[_Work, ...]
    last: list[int]
    by_rate: tuple[tuple[float, float, int], ...]
    high: int


def _of(works: tuple[_Work, ...]) -> Works:
    rates = sorted((*_rates(work), at) for at, work in enumerate(works))
    return Works(works, [0], tuple(rates), max([work.height for work in works], default=0))


def _rates(work: _Work) -> tuple[float, float]:
    """Nanoseconds of a row and of a round: with whole rounds of full tiles, and memory that is never waited for."""
    products, one_sm, rest = work.round
    of_round = (1 - 1e-9) * (rest + 0.05 * (products + one_sm) + 0.95 * max(products, one_sm))  # no rounding makes it too large
    return of_round * work.across / (work.height * work.resident), of_round


@lru_cache(maxsize=4096)
def tile_of(sizes: Sizes, sms: int) -> Tile:
    return fastest(_running(sizes, sms), sizes.rows)


def tiles_by_time(sizes: Sizes, sms: int) -> list[Tile]:
    """All tiles, the fastest first."""
    works = sorted(_running(sizes, sms).works, key=lambda work: _time(work, sizes.rows))
    return [work.tile for work in works]


def _running(sizes: Sizes, sms: int) -> Works:
    """The tiles without those splits whose CTAs, which wait for each other, would not run concurrently."""
    works = works_of(sizes, sms)
    if sizes.segments == 1:
        return works
    running = tuple([work for work in works.works if work.tile.split == 1 or _resident(work, sizes.rows, sms)])
    return Works(running, [0], tuple([(0.0, 0.0, at) for at in range(len(running))]), 0)


@lru_cache(maxsize=4096)
def whole_tile_of(sizes: Sizes, sms: int, alone: bool) -> Tile:
    """The fastest tile without a split. alone: also without a cluster."""
    return fastest(whole_works(sizes[1:], sms, alone), sizes.rows)


@lru_cache(maxsize=4096)
def swapped_tile_of(sizes: Sizes, sms: int) -> Tile:
    """The faster of the tiles with rows on N."""
    return min(SWAPPED, key=lambda tile: nanoseconds(tile, sizes, sms))


def nanoseconds(tile: Tile, sizes: Sizes, sms: int) -> float:
    """The time in ns: the maximum of the times for products, loads per SM and memory, plus 5 % of the others, because they do
    not overlap fully."""
    return _time(_work(tile, sizes, sms), sizes.rows)


def fastest(of: Works, rows: int) -> Tile:
    """The first of the fastest tiles. The previous answer is timed first; a tile whose partial time is longer is skipped. With
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


def works_of(sizes: Sizes, sms: int) -> Works:
    """The tiles of all products that differ from this one in rows alone."""
    return _works(sizes[1:], sms)


@lru_cache(maxsize=1024)
def _works(rest: tuple[Any, ...], sms: int) -> Works:
    """rest: all sizes except rows. Only rows differ between the steps of a server, so the result is cached."""
    sizes = Sizes(0, *rest)
    return _of(tuple(_work(tile, sizes, sms) for tile in (*_fitting(sizes, sms), *_of_halves(sizes))))


@lru_cache(maxsize=1024)
def whole_works(rest: tuple[Any, ...], sms: int, alone: bool) -> Works:
    sizes = Sizes(0, *rest)
    whole = (tile for tile in _fitting(sizes, sms) if tile.split == 1 and (tile.cluster == 1 or not alone))
    return _of(tuple(_work(tile, sizes, sms) for tile in whole))


def _of_halves(sizes: Sizes) -> tuple[Tile, ...]:
    return HALVES if sizes.size == 2 and sizes.segments == 1 and sizes.least == 32 else ()


def _fitting(sizes: Sizes, sms: int) -> Iterator[Tile]:
    """Tiles whose sums fit in registers. Sums of parts and of segments need twice as many registers."""
    most = 128 if sizes.parts or sizes.segments > 1 else 256
    for tile in TILES:
        whole = sizes.least == 32 or tile.columns // tile.cluster % sizes.least == 0
        if whole and tile.cluster <= max(1, sms) and tile.columns <= most:
            yield tile
    for tile in SPLIT if sizes.segments > 1 else ():
        if tile.columns >= sizes.least:
            yield tile._replace(split=sizes.segments)
            if sizes.segments > 4:  # two segments per CTA
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
    """Whether all clusters of a split run concurrently."""
    split = work.tile.split
    return _tiles(work, rows) * split <= _CLUSTERED[4 if split <= 4 else 8] * sms


def _tiles(work: _Work, rows: int) -> int:
    """The number of tiles, in whole clusters."""
    return -(-rows // work.height) * work.across


def _time(work: _Work, rows: int) -> float:
    """The time of a tile in ns. The tuple is unpacked for speed, because a selection calls this for each tile."""
    tile, height, across, resident, of_k, cycles, columns, line, share, each, once, narrow, copied, _ = work
    rounds = max(1, -(-(-(-rows // height) * across) // resident))
    of_k *= rounds
    products = of_k / _PANEL * cycles / _CYCLES  # ns of the last CTA
    own = rows if rows < tile[0] else tile[0]
    one_sm = (own + tile[1]) * of_k / _ONE_SM  # ns for loading both operands to an SM
    if rows <= height:  # weights come from memory, which is slower
        one_sm = max(one_sm, share * of_k / _WEIGHT_OF_ONE)
    memory = (rows + columns) * line / (narrow if rows <= 64 else _MEMORY)
    # Copies by the threads of the last CTA; CTAs of a cluster do not share copies.
    copies = rounds * (own + min(tile[1], columns)) / copied if copied else 0.0
    total = products + one_sm + memory + copies
    return 0.95 * max(products, one_sm, memory, copies) + 0.05 * total + rounds * each + once
