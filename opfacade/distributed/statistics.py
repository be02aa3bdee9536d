"""Counters of a group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True)
class Statistics:
    """calls; bytes sent; seconds waited; how often each rank arrived last; lags with a warning."""

    calls: int = 0
    bytes: int = 0
    waited: float = 0.0
    lags: int = 0
    last: dict[int, int] = field(default_factory=dict)

    def ended(self, sent: int, seconds: float, last: int | None) -> None:
        """Count one exchange. last: the peer that was waited for at the end; None where nobody was."""
        self.calls, self.bytes, self.waited = self.calls + 1, self.bytes + sent, self.waited + seconds
        if last is not None:
            self.last[last] = self.last.get(last, 0) + 1


class Counted(NamedTuple):
    """Rounds between GPUs: how many ended; bytes that this rank sent, None where NCCL moves them; by rank the seconds that this
    rank waited for it; and how often each rank arrived last. Kernels count the last three, so only a `link` by the memory of
    peers has them."""

    calls: int
    bytes: int | None
    waited: dict[int, float]
    last: dict[int, int]

    @property
    def slowest(self) -> int | None:
        """The rank that most waiting was for; None where none was counted."""
        return max(self.waited, key=self.waited.__getitem__) if any(self.waited.values()) else None
