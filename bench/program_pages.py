"""Tables of programs for docs/ops: each problem of a record beside its fastest peer, with the reason where that is faster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from bench.operators import Record, median_of, problems

HEAD = ["| work | us | of copying | fastest peer, us | peer over ours | why |", "|---|---|---|---|---|---|"]
NEAR = 0.98  # a peer's time over ours that needs no reason
UNEXPLAINED = "not explained yet"


class Reason(NamedTuple):
    """Why a peer is faster in the problems whose name the pattern finds, as a profile of such a problem showed."""

    pattern: str
    text: str


REASONS = (Reason(r"^softmax f32 ", "issue slots: two exponentials an element, each within the promised error"),)


class Timed(NamedTuple):
    """A problem of a record: its own row, and its fastest peer's (microseconds, name), if one was timed the same way."""

    ours: Record
    us: float
    peer: tuple[float, str] | None

    @property
    def ratio(self) -> float:
        """The peer's time over ours."""
        return self.peer[0] / self.us if self.peer else float("inf")

    @property
    def why(self) -> str:
        if self.ratio >= NEAR:
            return ""
        found = (reason.text for reason in REASONS if re.search(reason.pattern, self.ours["problem"]))
        return next(found, UNEXPLAINED)


def timed(of: Record, words: tuple[str, ...]) -> Iterator[Timed]:
    """The problems of a record whose names begin with one of the words."""
    for ours, peers in problems(of, words):
        key, us = median_of(ours) or ("", 0.0)
        yield Timed(ours, us, min(((row[key]["median"], row["impl"]) for row in peers if key in row), default=None))


def line(one: Timed) -> str:
    name = one.ours["problem"] + (", in a graph" if "graph_us" in one.ours else "")
    rate = f"{one.ours['of_copying']:.2f}" if "of_copying" in one.ours else ""
    peer = [f"{one.peer[1]} {one.peer[0]:.1f}", f"{one.ratio:.2f}"] if one.peer else ["", ""]
    return f"| {' | '.join([name, f'{one.us:.1f}', rate, *peer, one.why])} |"
