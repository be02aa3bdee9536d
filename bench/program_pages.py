"""Tables of programs for docs/ops: each problem of a record beside its fastest peer, with the reason where that is faster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from bench import operators
from bench.operators import Record, median_of, problems

HEAD = ["| work | us | of copying | fastest peer, us | peer over ours | why |", "|---|---|---|---|---|---|"]
NEAR = 0.98  # a peer's time over ours that needs no reason
UNEXPLAINED = "not explained yet"
COUNTERS = " (instructions "
LEGEND = (
    "ncu's counters: our instructions over the peer's; warps of those that fit, and what memory moved of what it can, "
    "ours and the peer's"
)


class Reason(NamedTuple):
    """Why a peer is faster in the problems whose name the pattern finds, as counters of such a problem showed."""

    pattern: str
    text: str


NORM = r"(?:add \+ rmsnorm|rmsnorm|layernorm)"
REASONS = (
    Reason(r"^softmax (?:bf16|f32) 65536 ", "issue slots: two exponentials an element, each within the promised error"),
    Reason(r"^softmax f32 4096 ", "fewer warps wait for memory, since a row stays in registers"),
    Reason(r"^softmax f32 1024 ", "fewer warps wait for memory, since a row stays in registers; the peer reads it again"),
    Reason(r"^softmax f32 512 ", "more instructions: two exponentials an element"),
    Reason(r"^rmsnorm 1 x ", "one CTA, which waits for instructions more often"),
    Reason(rf"^{NORM} \d+ x 1024$", "more instructions"),
    Reason(rf"^{NORM} ", "fewer warps, since a thread holds 32 elements: fewer loads are under way"),
    Reason(r"^silu_and_mul ", "fewer warps, since a thread holds more elements"),
    Reason(r"^sum f32 ", "memory limits both; the rest was not found"),
    Reason(r"^sum of columns f32 ", "fewer warps, in two waves of CTAs"),
    Reason(r"^segment sum f32 16384 ", "more instructions, fewer warps"),
    Reason(r"^map transposed: x \+ y", "more instructions, fewer warps"),
)


class Counters(NamedTuple):
    """ncu's counters of one kernel: instructions of all warps; percent of the warps that fit, and of what memory can move."""

    instructions: float
    warps: float
    memory: float


@cache
def counted() -> dict[str, Counters]:
    """By the names that bench/slower.py gives."""
    rows = operators.record("program_bounds")["rows"]
    return {
        row["work"]: Counters(row["launch"]["instructions"], row["launch"]["warps_percent"], row["busy_percent"]["memory"])
        for row in rows
    }


def beside(problem: str, peer: str) -> str:
    """Counters of ours and of the peer's kernel; "" where they were not taken."""
    found = counted()
    for kind in ("rows", "maps"):
        ours, theirs = found.get(f"{kind} {problem}"), found.get(f"{kind} {problem} by {peer}")
        if ours and theirs:
            times = ours.instructions / theirs.instructions
            warps, memory = f"{ours.warps:.0f} and {theirs.warps:.0f} %", f"{ours.memory:.0f} and {theirs.memory:.0f} %"
            return f"{COUNTERS}{times:.1f} x, warps {warps}, memory {memory})"
    return ""


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
        return next(found, UNEXPLAINED) + (beside(self.ours["problem"], self.peer[1]) if self.peer else "")


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
