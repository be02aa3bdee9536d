"""Which tile a product has: the one that a model of waves finds fastest. No tile changes a bit, so that rows may decide."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

_SHARED = 200 * 1024  # bytes of all stages
_PANEL = 64  # elements of k
_CYCLES = 1.75  # a nanosecond
_L2, _MEMORY = 40.0, 20.0  # bytes a nanosecond that one SM gets
_STAGE, _TILE, _STORE = 40.0, 500.0, 0.03  # nanoseconds of a stage at least, of a tile, and of an element of a tile


class Tile(NamedTuple):
    """rows: of x, 64 for each computing warpgroup; columns: of the product; panels: parts of 64 elements of k in a stage;
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


@lru_cache(maxsize=4096)
def tile_of(sizes: Sizes, sms: int) -> Tile:
    return min(
        (tile for tile in TILES if tile.cluster <= max(1, sms) and tile.columns >= sizes.least),
        key=lambda tile: _nanoseconds(tile, sizes, sms),
    )


def _nanoseconds(tile: Tile, sizes: Sizes, sms: int) -> float:
    """Rounds of tiles, each as long as its products, its loads, or the waits of its stages take."""
    tiles = -(-sizes.rows // (tile.rows * tile.cluster)) * -(-sizes.columns // tile.columns) * sizes.batch
    clusters = max(1, sms // tile.cluster)
    rounds = max(1, -(-tiles // clusters))
    busy = min(1.0, tiles / clusters)
    steps = -(-sizes.k // (_PANEL * tile.panels))
    products = tile.panels * tile.rows // 64 * max(2 * tile.columns, 128) / _CYCLES
    rows = min(tile.rows, sizes.rows)
    loads = (
        tile.panels
        * 128
        * max((rows + tile.columns / tile.cluster) / _L2, tile.columns / _MEMORY if sizes.rows <= tile.rows else 0)
        * busy
    )
    return rounds * (steps * max(products, loads, _STAGE) + _TILE + _STORE * tile.rows * tile.columns / 8)
