"""Which tile a product has: the one that a model of waves finds fastest. No tile changes a bit, so that rows may decide."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

_SHARED = 200 * 1024  # bytes of all stages
_PANEL = 128  # bytes of k
# Fitted to times of every tile on an H100; those of an H200 rank tiles alike.
_CYCLES = 1.5  # a nanosecond
_CHAIN = 165  # cycles of the four steps of a panel at least: each waits for the one before
_L2, _MEMORY, _ONE_SM = 7000.0, 2900.0, 57.0  # bytes a nanosecond: of all SMs, and of weights that one SM gets
_TILE, _STORE = 1000.0, 0.06  # nanoseconds of a tile, and of an element of a tile


class Tile(NamedTuple):
    """rows: of x, 64 for each computing warpgroup; columns: of the product; panels: parts of 128 bytes of k in a stage;
    cluster: CTAs with tiles one below the other, which share the weight."""

    rows: int
    columns: int
    panels: int
    cluster: int = 1

    @property
    def stage(self) -> int:
        """Bytes."""
        return self.panels * 128 * (self.rows + self.columns)

    @property
    def stages(self) -> int:
        return min(12, _SHARED // self.stage)


TILES = (
    Tile(128, 256, 1, 2), Tile(128, 128, 1, 2), Tile(128, 256, 1), Tile(128, 128, 1),
    Tile(64, 256, 1), Tile(64, 128, 2), Tile(64, 64, 2), Tile(64, 32, 2),
)  # fmt: skip


class Sizes(NamedTuple):
    rows: int
    columns: int
    k: int
    batch: int
    least: int = 32  # columns of a tile; a weight whose columns lie along panels has 64 in one
    size: int = 2  # bytes of an element


@lru_cache(maxsize=4096)
def tile_of(sizes: Sizes, sms: int) -> Tile:
    return min(
        (tile for tile in TILES if _takes(tile, sizes, sms)),
        key=lambda tile: _nanoseconds(tile, sizes, sms),
    )


def _takes(tile: Tile, sizes: Sizes, sms: int) -> bool:
    """Sums of 8-bit types need twice the registers."""
    most = 128 if sizes.size == 1 else 256
    return tile.cluster <= max(1, sms) and sizes.least <= tile.columns <= most


def _nanoseconds(tile: Tile, sizes: Sizes, sms: int) -> float:
    """The longest of products, L2 and memory, and part of the others, because they do not overlap in full."""
    across, down = -(-sizes.columns // tile.columns), -(-sizes.rows // (tile.rows * tile.cluster))
    clusters = max(1, sms // tile.cluster)
    tiles = down * across * sizes.batch
    rounds = max(1, -(-tiles // clusters))
    of_k = sizes.k * sizes.size  # bytes
    panels = -(-of_k // (_PANEL * tile.panels)) * tile.panels
    products = rounds * panels * max(tile.rows // 64 * 2 * tile.columns, _CHAIN) / _CYCLES
    of_x = min(tile.rows * tile.cluster, sizes.rows)
    level2 = tiles * (of_x + tile.columns) * of_k / _L2
    weight = sizes.columns * of_k * sizes.batch
    memory = max(weight / _MEMORY, rounds * tile.columns / tile.cluster * of_k / _ONE_SM if down == 1 else 0.0)
    longest = max(products, level2, memory)
    return 0.9 * longest + 0.1 * (products + level2 + memory) + rounds * (_TILE + _STORE * tile.rows * tile.columns)
