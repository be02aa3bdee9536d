"""How long blocks take that share a device: each starts where one before it ends, none is faster than it is alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple


class Predicted(NamedTuple):
    """What a candidate is predicted to take: seconds, blocks of its launch, how many run at once, bytes of partial results."""

    seconds: float
    blocks: int
    slots: int
    partial_bytes: float


def drained(sizes: Sequence[float], slots: int, alone: float, device: float) -> float:
    """Seconds until all blocks are done. sizes: work of each, in the order of their start; slots: that run at once.

    alone: work a second of a block that has the device to itself; device: of all together, however many. A block waits for
    answers that come later the more others ask (alone), and in the end for its share of the device: of times that overlap the
    root of the sum of squares. Measured so on an H200: 264 blocks of decode reach 4.2 of 4.8 TB/s, 132 of them 3.7.
    """
    running: list[float] = []
    done = seconds = 0.0  # done: by a block that has run from the start
    waiting = iter(sizes)
    for size in waiting:
        heappush(running, size)
        if len(running) == slots:
            break
    while running:
        seconds += (running[0] - done) * math.hypot(1 / alone, len(running) / device)
        done = running[0]
        while running and running[0] <= done:
            heappop(running)
            following = next(waiting, None)
            if following is not None:
                heappush(running, done + following)
    return seconds
