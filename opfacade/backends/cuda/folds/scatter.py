"""Rows of up to about a warp whose lanes have neighbouring elements: the number of lanes, and of elements per lane."""

from __future__ import annotations

MOST_HALVES, _MOST_WORDS = 1024, 512  # elements of a row of up to 16 bits that one warp has, and of wider ones
_FEW, _LANES = 8, (4, 8, 16, 32)  # elements per lane, if a row has few


def most(size: int) -> int:
    """Elements of the longest row. size: bytes per element of the narrowest tensor."""
    return MOST_HALVES if size < 4 else _MOST_WORDS


def least(size: int) -> int:
    """Elements of the longest row that a lane has alone, or two."""
    return max(4, 16 // size)


def dealt(elements: int, size: int) -> tuple[int, int, int]:
    """(lanes per row, elements per vector, vectors per lane). Vectors are as long as possible if few of a lane's slots stay
    empty."""
    lanes = next((lanes for lanes in _LANES if elements <= _FEW * lanes), _LANES[-1])
    each = -(-elements // lanes)
    places = {vector: -(-each // vector) * vector for vector in ((8, 6, 4, 2) if size > 1 else (8, 4, 2))}
    vector = next(vector for vector, found in places.items() if 4 * found <= 5 * min(places.values()))
    return lanes, vector, places[vector] // vector
