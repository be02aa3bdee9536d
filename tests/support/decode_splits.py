"""Model of the splits of a decode in the order in which CTAs take them: kernels/attention/decode/schedule, `cut.cuh` and
`pieces.cuh`, in Python.

Splits start at multiples of a scheduling tile (64 keys). A work unit is all tiles of one request and one head block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MIN_SHARE_TILES = 2  # minimum tiles per share: the merge of a smaller share costs more than it saves
_CLASSES = 4


class Split(NamedTuple):
    """One split for all head blocks. part, parts: its index and the number of splits of its unit; first, end: tiles of the
    unit."""

    request: int
    part: int
    parts: int
    first: int
    end: int


def splits(counts: Sequence[int], heads: int, resident: int) -> list[Split]:
    """counts: tiles of each request's unit; heads: head blocks; resident: concurrent CTAs."""
    found = _nearly_equal(counts, heads, resident) or _by_length(counts, heads, resident)
    bounds = ((request, parts, [split_start(counts[request], parts, i) for i in range(parts + 1)]) for request, parts in found)
    return [Split(request, i, parts, at[i], at[i + 1]) for request, parts, at in bounds for i in range(parts)]


def _nearly_equal(counts: Sequence[int], heads: int, resident: int) -> list[tuple[int, int]]:
    """(request, its number of splits), in order; empty if unit lengths differ."""
    if 8 * sum(counts) < 7 * len(counts) * max(counts):
        return []
    leading, parts, tail = equal_partition(len(counts), max(counts), max(1, resident // heads))
    return [(request, parts if request < leading else tail) for request in range(len(counts))]


def _by_length(counts: Sequence[int], heads: int, resident: int) -> list[tuple[int, int]]:
    """Long splits first; in a size class by the lane that scans the request."""
    longest = longest_concurrent_split(sum(counts) * heads, resident)
    if heads * sum(split_count(count, longest) for count in counts) > resident:
        longest = longest_queued_split(longest)
    partition = [(request, split_count(count, longest)) for request, count in enumerate(counts)]
    return sorted(partition, key=lambda unit: (split_class(counts[unit[0]], unit[1], longest), unit[0] % 32, unit[0] // 32))


def equal_partition(batch: int, max_tiles: int, wave: int) -> tuple[int, int, int]:
    """(requests before the tail, splits of each of these, splits of each request of the tail)."""
    finest = max(1, max_tiles // MIN_SHARE_TILES)
    if batch <= wave:
        return batch, min(wave // batch, finest), 1
    leading = batch // wave * wave
    return leading, 1, min(wave // (batch - leading), finest) if batch > leading else 1


def split_count(tiles: int, longest: int) -> int:
    return -(-tiles // longest)


def split_class(tiles: int, count: int, longest: int) -> int:
    return sum(_CLASSES * tiles <= quarters * longest * count for quarters in (3, 2, 1))


def longest_concurrent_split(tiles: int, resident: int) -> int:
    even = tiles // resident
    return max(MIN_SHARE_TILES, even + even // 16 + 1)


def longest_queued_split(longest: int) -> int:
    return -(-5 * longest // 7)


def split_start(tiles: int, count: int, i: int) -> int:
    return i * (tiles // count) + min(i, tiles % count)
