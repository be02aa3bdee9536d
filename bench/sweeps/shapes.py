"""Random extents: widths from 1 to 2,000,000, mostly odd, and as many rows as memory and time allow."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

WIDEST, MOST_ROWS = 2_000_000, 1_000_000
ELEMENTS = 2**26  # of a problem, at most
ONE_ROW, A_MILLION, ODD = 0.12, 0.08, 0.6  # how often
STRIDED = 0.1
AHEAD = 3  # elements before the first one of a row that is part of a longer one


def between(draw: Random, least: int, most: int) -> int:
    """A log-uniform integer: each octave is equally likely."""
    return min(most, max(least, round(math.exp(draw.uniform(math.log(least), math.log(most + 1))))))


def shape(draw: Random, widest: int = WIDEST) -> tuple[int, int]:
    """(rows, width)"""
    turn = draw.random()
    if turn < A_MILLION:
        return MOST_ROWS, between(draw, 1, ELEMENTS // MOST_ROWS)
    width = between(draw, 1, widest)
    width += width % 2 == 0 and width < widest and draw.random() < ODD
    return 1 if turn < A_MILLION + ONE_ROW else between(draw, 1, min(MOST_ROWS, ELEMENTS // width)), width


def apart(args: Any, name: str) -> Any:
    """The bundle with the rows of one tensor as parts of longer rows, with unaligned starts (not multiples of 16 bytes)."""
    tensor = getattr(args, name)
    wide = tensor.new_empty(tensor.shape[0], tensor.shape[1] + AHEAD + 2)
    return replace(args, **{name: wide[:, AHEAD : AHEAD + tensor.shape[1]].copy_(tensor)})


def laid_out(draw: Random, name: str) -> tuple[str, Any]:
    """A layout's description, and a function that applies it to a tensor."""
    if draw.random() < STRIDED:
        return ", rows apart", lambda args: apart(args, name)
    return "", lambda args: args
