"""Rows of a warp at most whose lanes have neighbouring elements: how many lanes, and how many elements each."""

from __future__ import annotations

MOST_HALVES, _MOST_WORDS = 1024, 512  # elements of a row of 16 bits or less that one warp has, and of one of more
_FEW, _LANES = 8, (4, 8, 16, 32)  # elements of a lane, where a row has few


def most(size: int) -> int:
    """Elements of the longest row. size: bytes of an element of the narrowest tensor."""
    return MOST_HALVES if size < 4 else _MOST_WORDS


def least(size: int) -> int:
    """Elements of the longest row that a lane has alone, or two."""
    return max(4, 16 // size)


def dealt(elements: int, size: int) -> tuple[int, int, int]:
    """(lanes of a row, elements of a vector, vectors of a lane). Vectors are long, where that leaves few places of a lane
    empty, and have whole words of each tensor, or a part of one."""
    lanes = next((lanes for lanes in _LANES if elements <= _FEW * lanes), _LANES[-1])
    each = -(-elements // lanes)
    places = {vector: -(-each // vector) * vector for vector in ((8, 6, 4, 2) if size > 1 else (8, 4, 2))}
    vector = next(vector for vector, found in places.items() if 4 * found <= 5 * min(places.values()))
    return lanes, vector, places[vector] // vector
