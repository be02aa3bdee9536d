"""The work units of a decode, in the order in which CTAs take them.

As kernels/attention/decode/schedule/cut.cuh and decode/schedule/pieces.cuh make them.
A grain is what cuts lie at multiples of (64 keys there, "tiles"); a run is the grains of one request for one block of heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LEAST_GRAINS = 2  # of a share: less is not worth a merge
_CLASSES = 4


class Piece(NamedTuple):
    """One for each block of heads. part, parts: which of its run's it is; first, end: grains of the run."""

    request: int
    part: int
    parts: int
    first: int
    end: int


def pieces(counts: Sequence[int], heads: int, resident: int) -> list[Piece]:
    """counts: grains of each request's run; heads: blocks of them; resident: blocks that run at once."""
    found = _nearly_equal(counts, heads, resident) or _by_length(counts, heads, resident)
    starts = ((request, parts, [start(counts[request], parts, i) for i in range(parts + 1)]) for request, parts in found)
    return [Piece(request, i, parts, at[i], at[i + 1]) for request, parts, at in starts for i in range(parts)]


def _nearly_equal(counts: Sequence[int], heads: int, resident: int) -> list[tuple[int, int]]:
    """(request, its pieces), in order; nothing where runs differ."""
    if 8 * sum(counts) < 7 * len(counts) * max(counts):
        return []
    whole, parts, tail = equal_cut(len(counts), max(counts), max(1, resident // heads))
    return [(request, parts if request < whole else tail) for request in range(len(counts))]


def _by_length(counts: Sequence[int], heads: int, resident: int) -> list[tuple[int, int]]:
    """Long pieces first; alike in length, by the lanes that look at them."""
    longest = at_once(sum(counts) * heads, resident)
    if heads * sum(piece_count(count, longest) for count in counts) > resident:
        longest = in_turn(longest)
    cut = [(request, piece_count(count, longest)) for request, count in enumerate(counts)]
    return sorted(cut, key=lambda run: (piece_class(counts[run[0]], run[1], longest), run[0] % 32, run[0] // 32))


def equal_cut(batch: int, most: int, wave: int) -> tuple[int, int, int]:
    """(requests before the tail, pieces of each of those, and of each of the others)."""
    finest = max(1, most // LEAST_GRAINS)
    if batch <= wave:
        return batch, min(wave // batch, finest), 1
    whole = batch // wave * wave
    return whole, 1, min(wave // (batch - whole), finest) if batch > whole else 1


def piece_count(grains: int, longest: int) -> int:
    return -(-grains // longest)


def piece_class(grains: int, count: int, longest: int) -> int:
    return sum(_CLASSES * grains <= quarters * longest * count for quarters in (3, 2, 1))


def at_once(grains: int, resident: int) -> int:
    even = grains // resident
    return max(LEAST_GRAINS, even + even // 16 + 1)


def in_turn(longest: int) -> int:
    return -(-5 * longest // 7)


def start(grains: int, count: int, i: int) -> int:
    return i * (grains // count) + min(i, grains % count)
