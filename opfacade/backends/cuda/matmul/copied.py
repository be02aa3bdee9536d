"""The shape of kernels that use mma.sync and whose threads copy stages of both operands: for GPUs before sm_90, and for grouped
products whose weight has codes."""

from __future__ import annotations

from typing import NamedTuple

from opfacade.backends.cuda.declared import Fact
from opfacade.backends.cuda.matmul.segments import Segments

COLUMNS = 64
_PANEL = 64 * 128  # bytes of one 128-byte line per column, and of 64 rows of x
_SUMS = 64 + 4  # floats per row of partial sums
_LEAST = 1024  # minimum k for two segments
_UNIT = 256  # segments are multiples of a stage
_SM = 227 * 1024  # bytes of shared memory per SM


class _Stage(NamedTuple):
    """lines: 128-byte lines per column. panels: panels of 64 elements of x. stages: rows of a tile -> number of stages."""

    lines: int
    panels: int
    stages: dict[int, int]


# By bits per element of the weight.
_STAGES = {
    4: _Stage(1, 4, {8: 3, 16: 2, 32: 2, 64: 2}),
    8: _Stage(2, 4, {8: 2, 16: 2, 32: 2}),
    16: _Stage(1, 1, {16: 4, 64: 4}),
}


class Copied(NamedTuple):
    """rows: rows of x per tile. along: warpgroups of a CTA with separate segments of k. slot: elements of k that are always in
    one group; 0: all. bits: bits per element of the weight."""

    rows: int
    along: int
    segments: Segments | None
    slot: int
    bits: int = 4
    repack: bool = False
    revision: int = 1

    @property
    def shared(self) -> int:
        """Bytes of shared memory, as in CodedShared."""
        lines, panels, stages = _STAGES[self.bits]
        each = lines * _PANEL + self.rows * panels * 128 + 32
        return self.along * (stages[self.rows] * each + min(self.rows, 32) * _SUMS * 4)

    def facts(self) -> dict[str, Fact]:
        found: dict[str, Fact] = {"tile_rows": self.rows, "tile_columns": COLUMNS}
        found |= {"along": self.along} if self.along > 1 else {}
        found |= {"segment": self.segments.length} if self.segments is not None else {}
        return found | ({"slot": self.slot} if self.slot else {})

    def printed(self) -> dict[str, Fact]:
        lines, panels, stages = _STAGES[self.bits]
        shape: dict[str, Fact] = {"tokens": self.rows, "along": self.along, "stages": stages[self.rows]}
        shape |= {"shared": self.shared, "weight_bits": self.bits, "lines": lines, "x_panels": panels}
        return shape | {"slot": self.slot, "segmented": self.segments is not None}


class CopiedGroups(Copied):
    """The shape of grouped products."""

    __slots__ = ()

    def printed(self) -> dict[str, Fact]:
        """The printed values, including the CTAs per SM of the persistent kernel."""
        return super().printed() | {"resident": max(1, min(4, _SM // (self.shared + 8192)))}


def shape_of(rows: float, segments: Segments | None, slot: int, bits: int) -> Copied:
    """The smallest tile with at least this number of rows, otherwise the largest. Few rows use two warpgroups along k."""
    tiles = _STAGES[bits].stages
    tile = next((one for one in tiles if one >= rows), max(tiles))
    few = tile <= (8 if bits == 8 else 16)  # the stages of two warpgroups fit in shared memory
    return Copied(tile, 2 if few and segments is not None else 1, segments, slot, bits)


def segments_of(k: int, order: str) -> Segments | None:
    """Two segments, which depend only on k, so that a CTA with few rows has eight warps. None: k is one chain."""
    return Segments(2, -(-k // (2 * _UNIT)) * _UNIT) if k >= _LEAST and order != "k" else None
