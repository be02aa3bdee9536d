"""Counters of a group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True)
class Statistics:
    """calls; bytes sent; seconds waited; lags: how often a LagWarning was given; last: how often each rank arrived last."""

    calls: int = 0
    bytes: int = 0
    waited: float = 0.0
    lags: int = 0
    last: dict[int, int] = field(default_factory=dict)

    def ended(self, sent: int, seconds: float, last: int | None) -> None:
        """Counts one exchange. last: the peer that arrived last; None if this rank did not wait."""
        self.calls, self.bytes, self.waited = self.calls + 1, self.bytes + sent, self.waited + seconds
        if last is not None:
            self.last[last] = self.last.get(last, 0) + 1


class Counted(NamedTuple):
    """Rounds between GPUs. calls: completed rounds. bytes: sent by this rank; None if NCCL moves them. waited: seconds that
    this rank waited for each rank. last: how often each rank arrived last. Only kernels count bytes, waited and last, so they
    need a PeerLink."""

    calls: int
    bytes: int | None
    waited: dict[int, float]
    last: dict[int, int]

    @property
    def slowest(self) -> int | None:
        """The rank that caused the longest waiting time; None if none was counted."""
        return max(self.waited, key=self.waited.__getitem__) if any(self.waited.values()) else None
