"""Tables of programs for docs/ops: each problem of a record with its fastest peer.

`reason` is a line of docs/notebook/limits.md: why a peer is faster, and what limits a large problem that misses its goal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from math import prod
from typing import NamedTuple

from bench import limits, operators
from bench.operators import Record, median_of, problems

HEAD = ["| work | us | share of copy rate | time / model | fastest peer, us | speed-up over it |", "|---|---|---|---|---|---|"]
REASONS = ["| work | us | why |", "|---|---|---|"]
NEAR = 0.98  # a peer's time over ours, from which on no reason is needed
UNEXPLAINED = "not explained yet"
UNCOUNTED = "not counted yet"
SHORT = "short of the goal: "
COUNTERS = (" (instructions ", " (issued ")  # with a peer, and without
LEGENDS = (
    "our instructions over the peer's; warps of those that fit, and what memory moved of what it can, ours and the peer's",
    "of ours alone, cycles in which an instruction issued, waves of CTAs, and what DRAM moved over the bytes of the model",
)


class Cause(NamedTuple):
    """The reason why the counters of our kernel and of a faster peer's differ, for the problems whose names match the
    pattern."""

    pattern: str
    finding: str  # of limits.compared
    text: str


CAUSES = (Cause(r"^softmax ", limits.MORE, ": two exponentials an element, each within the promised error"),)
MANY = 16  # from this many elements per thread on, they are the reason for fewer warps


def caused(ours: Record, finding: str) -> str:
    """A finding, and its cause if it is known. The elements per thread come from our SKU."""
    held = prod(int(size) for size in re.findall(r"(?:pieces|vector)=(\d+)", ours.get("sku", "")))
    if finding == limits.FEWER and held >= MANY:
        return f"{finding}, since a thread holds {held} elements"
    matching = (one.text for one in CAUSES if one.finding == finding and re.search(one.pattern, ours["problem"]))
    return finding + next(matching, "")


@cache
def counted() -> dict[str, Record]:
    """The counters by problem name, as in bench/slower.py."""
    return {row["work"]: row for row in operators.record("program_bounds")["rows"]}


def of_work(problem: str) -> Iterator[str]:
    """The names that a problem can have in bench/slower.py, without the peer's name."""
    return (f"{kind} {problem}" for kind in ("rows", "maps"))


def both(problem: str, peer: str) -> tuple[Record, Record] | None:
    """The counters of our kernel and of the peer's, if they were measured."""
    found = counted()
    names = ((work, f"{work} by {peer}") for work in of_work(problem))
    return next(((found[ours], found[theirs]) for ours, theirs in names if ours in found and theirs in found), None)


def beside(problem: str, peer: str) -> str:
    """The counters that show the difference to a faster peer's kernel; "" if they were not measured."""
    pair = both(problem, peer)
    if pair is None:
        return ""
    times = pair[0]["launch"]["instructions"] / pair[1]["launch"]["instructions"]
    warps, memory = ((row["launch"]["warps_percent"] for row in pair), (row["busy_percent"]["memory"] for row in pair))
    percent = [" and ".join(f"{value:.0f}" for value in values) for values in (warps, memory)]
    return f"{COUNTERS[0]}{times:.1f} x, warps {percent[0]} %, memory {percent[1]} %)"


class Timed(NamedTuple):
    """A problem of a record: our row, and the fastest peer's (microseconds, name) if one was timed in the same way."""

    ours: Record
    us: float
    peer: tuple[float, str] | None

    @property
    def ratio(self) -> float:
        """The peer's time divided by ours."""
        return self.peer[0] / self.us if self.peer else float("inf")

    @property
    def name(self) -> str:
        return f"{self.ours['problem']}{', in a graph' if 'graph_us' in self.ours else ''}"

    @property
    def why(self) -> str:
        """The reasons why a peer is faster and why we miss the goal, as far as they apply."""
        return "; ".join(filter(None, [self.slower, self.short]))

    @property
    def slower(self) -> str:
        if self.peer is None or self.ratio >= NEAR:
            return ""
        problem, peer = self.ours["problem"], self.peer[1]
        pair = both(problem, peer)
        if pair is None:
            return UNEXPLAINED
        return ", ".join(caused(self.ours, finding) for finding in limits.compared(*pair)) + beside(problem, peer)

    @property
    def short(self) -> str:
        if not limits.short(self.ours):
            return ""
        found = (counted()[work] for work in of_work(self.ours["problem"]) if work in counted())
        row = next(found, None)
        return SHORT + (limits.reason(row, self.ours["bytes"]) if row else UNCOUNTED)


def timed(of: Record, words: tuple[str, ...]) -> Iterator[Timed]:
    """The problems of a record whose names begin with one of the words."""
    for ours, peers in problems(of, words):
        key, us = median_of(ours) or ("", 0.0)
        yield Timed(ours, us, min(((row[key]["median"], row["impl"]) for row in peers if key in row), default=None))


def line(one: Timed) -> str:
    rate = f"{one.ours['of_copying']:.2f}" if "of_copying" in one.ours else ""
    over = f"{one.ours['over_model']:.2f}" if "over_model" in one.ours else ""
    peer = [f"{one.peer[1]} {one.peer[0]:.1f}", f"{one.ratio:.2f}"] if one.peer else ["", ""]
    return f"| {' | '.join([one.name, f'{one.us:.1f}', rate, over, *peer])} |"


def reasons(of: Record) -> Iterator[str]:
    """A line for each problem of a record whose time needs an explanation."""
    return (f"| {one.name} | {one.us:.1f} | {one.why} |" for one in timed(of, ("",)) if one.why)


def uncounted() -> list[str]:
    """The problems of the newest records that miss their goal and have no counters."""
    every = (one for kind in ("rows", "maps") for one in timed(operators.record(kind), ("",)))
    return [one.ours["problem"] for one in every if one.short == SHORT + UNCOUNTED]
