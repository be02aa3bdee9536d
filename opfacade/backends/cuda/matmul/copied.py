"""The shape of kernels that multiply by mma.sync and whose threads copy stages of both operands: for GPUs before sm_90, and for
groups whose weight has codes."""

from __future__ import annotations

from typing import NamedTuple

from opfacade.backends.cuda.declared import Fact
from opfacade.backends.cuda.matmul.segments import Segments

COLUMNS = 64
_PANEL = 64 * 128  # bytes of a line of 128 bytes of each column, and of 64 rows of x
_SUMS = 64 + 4  # floats of a row of partial sums
_LEAST = 1024  # elements of k that two segments have
_UNIT = 256  # a segment is whole stages
_SM = 227 * 1024  # bytes that CTAs of an SM share


class _Stage(NamedTuple):
    """lines: of 128 bytes of a column; panels: of 64 elements of x; stages: by rows of a tile."""

    lines: int
    panels: int
    stages: dict[int, int]


# By bits of an element of the weight.
_STAGES = {
    4: _Stage(1, 4, {8: 3, 16: 2, 32: 2, 64: 2}),
    8: _Stage(2, 4, {8: 2, 16: 2, 32: 2}),
    16: _Stage(1, 1, {16: 4, 64: 4}),
}


class Copied(NamedTuple):
    """rows: of x in a tile; along: warpgroups of a CTA that have a segment of k each; slot: elements of k that surely lie in
    one group, 0: all; bits: of an element of the weight."""

    rows: int
    along: int
    segments: Segments | None
    slot: int
    bits: int = 4
    repack: bool = False
    revision: int = 1

    @property
    def shared(self) -> int:
        """Bytes, as CodedShared has them."""
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
    """The shape of products of groups."""

    __slots__ = ()

    def printed(self) -> dict[str, Fact]:
        """And how many CTAs of a persistent kernel an SM has."""
        return super().printed() | {"resident": max(1, min(4, _SM // (self.shared + 8192)))}


def shape_of(rows: float, segments: Segments | None, slot: int, bits: int) -> Copied:
    """The smallest tile that has so many rows, or the largest. Few rows have two warpgroups along k."""
    tiles = _STAGES[bits].stages
    tile = next((one for one in tiles if one >= rows), max(tiles))
    few = tile <= (8 if bits == 8 else 16)  # stages of two warpgroups fit
    return Copied(tile, 2 if few and segments is not None else 1, segments, slot, bits)


def segments_of(k: int, order: str) -> Segments | None:
    """Two, by k alone, so that a CTA of few rows has eight warps. None: k is one chain."""
    return Segments(2, -(-k // (2 * _UNIT)) * _UNIT) if k >= _LEAST and order != "k" else None
