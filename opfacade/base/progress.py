"""Progress of a long task, with the remaining time estimated from the speed so far."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """Counts steps of about equal duration. clock: returns seconds."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._done, self._clock, self._start = total, 0, clock, clock()

    def step(self, count: int = 1) -> str:
        """Progress after `count` more steps: "3 of 12, 40 s, about 120 s left"."""
        self._done += count
        spent = self._clock() - self._start
        left = spent / max(self._done, 1) * max(self._total - self._done, 0)
        rest = f", about {left:.0f} s left" if self._done < self._total else ""
        return f"{self._done} of {self._total}, {spent:.0f} s{rest}"
