"""Which tile a product has: the one that a model of waves finds fastest. No tile changes a bit, so that rows may decide."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

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
_CLUSTERED = 0.8  # of all SMs: clusters of eight do not fit everywhere
_SUM = 700.0  # nanoseconds of the sum of a cluster: half to 1.4 microseconds (bench/results/matmul_probes.json)


class Tile(NamedTuple):
    """rows: of x, 64 for each computing warpgroup; columns: of the product; panels: parts of 128 bytes of k in a stage;
    cluster: CTAs with tiles one below the other, which share the weight; split: CTAs of a cluster with one tile, each for a
    segment of k."""

    rows: int
    columns: int
    panels: int
    cluster: int = 1
    split: int = 1

    @property
    def stage(self) -> int:
        """Bytes."""
        return self.panels * _PANEL * (self.rows + self.columns)

    @property
    def stages(self) -> int:
        return stages_of(self, 1)


def stages_of(tile: Tile, terms: int) -> int:
    """Stages that fit, of a large tile beside all of its results if these are four. terms: operands in one that a weight is the
    sum of."""
    stage = tile.panels * _PANEL * (tile.rows + terms * tile.columns)
    beside = (_ALL_SHARED - 1024 - 2 * tile.rows * tile.columns) // stage
    most = min(12, _SHARED // stage)
    return beside if tile.rows == 128 and 4 <= beside < most else most


TILES = (
    Tile(128, 256, 1, 2), Tile(128, 256, 1), Tile(128, 192, 1), Tile(128, 128, 1), Tile(128, 64, 1),
    Tile(64, 256, 1), Tile(64, 192, 1), Tile(64, 128, 2), Tile(64, 64, 2), Tile(64, 32, 2),
)  # fmt: skip
HALVES = (
    Tile(128, 224, 1),
    Tile(128, 160, 1),
    Tile(64, 160, 1),
)  # of 16-bit operands: fewer waves where n is no multiple of 192
SPLIT = (Tile(64, 32, 2), Tile(64, 64, 2))


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


@lru_cache(maxsize=4096)
def tile_of(sizes: Sizes, sms: int) -> Tile:
    return min((*_fitting(sizes, sms), *_of_halves(sizes)), key=lambda tile: nanoseconds(tile, sizes, sms))


def _of_halves(sizes: Sizes) -> tuple[Tile, ...]:
    return HALVES if sizes.size == 2 and sizes.segments == 1 and sizes.least == 32 else ()


@lru_cache(maxsize=4096)
def whole_tile_of(sizes: Sizes, sms: int, alone: bool) -> Tile:
    """The fastest without a split. alone: without a cluster too."""
    whole = (tile for tile in _fitting(sizes, sms) if tile.split == 1 and (tile.cluster == 1 or not alone))
    return min(whole, key=lambda tile: nanoseconds(tile, sizes, sms))


def _fitting(sizes: Sizes, sms: int) -> Iterator[Tile]:
    """Tiles whose sums fit registers, and whose CTAs run at once where they wait for each other. Sums of parts and of segments
    need twice the registers."""
    most = 128 if sizes.parts or sizes.segments > 1 else 256
    for tile in TILES:
        whole = sizes.least == 32 or tile.columns // tile.cluster % sizes.least == 0
        if whole and tile.cluster <= max(1, sms) and tile.columns <= most:
            yield tile
    for tile in SPLIT if sizes.segments > 1 else ():
        if tile.columns >= sizes.least and _tiles(tile, sizes) * sizes.segments <= _CLUSTERED * sms:
            yield tile._replace(split=sizes.segments)


def _tiles(tile: Tile, sizes: Sizes) -> int:
    """As many as clusters take."""
    return -(-sizes.rows // (tile.rows * tile.cluster)) * -(-sizes.columns // tile.columns) * sizes.batch


def nanoseconds(tile: Tile, sizes: Sizes, sms: int) -> float:
    """The longest of products, of what an SM gets and of memory, and part of the others: they do not overlap in full."""
    rounds = max(1, -(-_tiles(tile, sizes) // max(1, sms // (tile.cluster * tile.split))))
    times = [_products(tile, sizes, rounds), _one_sm(tile, sizes, rounds), _memory(tile, sizes)]
    times += [_copies(tile, sizes, rounds)] if sizes.copied else []
    each = _TILE + _STORE * tile.rows * tile.columns + (_CLUSTER if tile.cluster > 1 else 0.0)
    return 0.95 * max(times) + 0.05 * sum(times) + rounds * each + (_SUM if tile.split > 1 else 0.0)


def _of_k(tile: Tile, sizes: Sizes) -> int:
    """Bytes of k that a CTA multiplies: whole stages."""
    stage = _PANEL * tile.panels
    return -(-sizes.k * sizes.size // (stage * tile.split)) * stage


def _products(tile: Tile, sizes: Sizes, rounds: int) -> float:
    """Time of the last CTA."""
    of_column, least = (_BYTES, _PART) if sizes.parts else (2.0, _CHAIN)
    cycles = max(tile.rows // 64 * of_column * tile.columns, least)
    return rounds * _of_k(tile, sizes) / _PANEL * cycles / _CYCLES


def _copies(tile: Tile, sizes: Sizes, rounds: int) -> float:
    """By the threads of the last CTA. CTAs of a cluster share none."""
    lines = min(tile.rows, sizes.rows) + min(tile.columns, sizes.columns)
    return rounds * lines * sizes.k * sizes.size / tile.split / sizes.copied


def _one_sm(tile: Tile, sizes: Sizes, rounds: int) -> float:
    """Bytes of both operands that an SM gets; with one row of tiles weights come from memory, and slower."""
    of_k = rounds * _of_k(tile, sizes)
    every = (min(tile.rows, sizes.rows) + tile.columns) * of_k / _ONE_SM
    if sizes.rows > tile.rows * tile.cluster:
        return every
    return max(every, tile.columns / tile.cluster * of_k / _WEIGHT_OF_ONE)


def _memory(tile: Tile, sizes: Sizes) -> float:
    rate = _NARROW * _MEMORY if tile.panels == 1 and sizes.rows <= 64 else _MEMORY
    return (sizes.rows + sizes.columns) * sizes.k * sizes.size * sizes.batch / rate
