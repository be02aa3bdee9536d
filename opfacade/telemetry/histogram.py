"""A histogram of sampled run times."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from opfacade.base.fork_lock import ForkLock

# Upper limits of the histogram's classes in microseconds: 1, 2, 5, 10, ... up to 10 s; one more class has no limit.
LATENCY_ENDS = (*(step * 10.0**power for power in range(7) for step in (1, 2, 5)), 1e7)


class Latency:
    """A histogram of sampled run times, in microseconds."""

    __slots__ = ("_counts", "_lock", "_sum")

    def __init__(self) -> None:
        self._counts, self._sum, self._lock = [0] * (len(LATENCY_ENDS) + 1), 0.0, ForkLock()

    def add(self, microseconds: float) -> None:
        with self._lock:
            self._counts[bisect_left(LATENCY_ENDS, microseconds)] += 1
            self._sum += microseconds

    def as_dict(self) -> dict[str, Any]:
        """`{"samples": n, "sum_us": t, "counts": [...]}`: one count for each limit, and one for longer times."""
        with self._lock:
            return {"samples": sum(self._counts), "sum_us": self._sum, "counts": list(self._counts)}
