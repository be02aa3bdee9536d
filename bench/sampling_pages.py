"""Tables of sampling for docs/ops/sampling.md: draws compared with the fastest peer, and the cost of each adjustment.

`reasons` are lines of docs/notebook/limits.md: what limits a draw that takes longer than its goal, or an adjustment that costs
more than LIMIT.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench import limits, operators
from bench.operators import Record

HEAD = ["| work | us | fastest peer, us | speed-up over it | goal, us |", "|---|---|---|---|---|"]
COSTS = ["| adjustment | us | time / none |", "|---|---|---|"]
ADJUSTMENTS = (
    "Adjustments of 64 rows of 128256 f32 logits, without filters. Most requests have penalties that only lower logits. In the "
    "row `penalties`, some requests raise logits."
)
SHOWN = re.compile(r"^\d+ x 128256 \w+ peaked, filters ")
ADJUSTED = re.compile(r"^(.*), with (.*)$")
GOALS = {f"{rows} x 128256 f32 peaked, filters k and p": us for rows, us in ((1, 10.0), (64, 20.0), (256, 60.0))}
LIMIT = 1.05  # relative to the time without the adjustment
UNCOUNTED = "not counted yet"


def counted() -> dict[str, Record]:
    """Counters by problem."""
    rows = operators.record("program_bounds")["rows"]
    return {row["work"].removeprefix("sample "): row for row in rows if row["work"].startswith("sample ")}


def logits_bytes(problem: str) -> int:
    rows, _, vocab, dtype = problem.partition(",")[0].split()[:4]
    return int(rows) * int(vocab) * (4 if dtype == "f32" else 2)


def why(problem: str) -> str:
    counters = counted().get(problem)
    return limits.reason(counters, logits_bytes(problem)) if counters else UNCOUNTED


def draws(of: Record) -> Iterator[str]:
    for row in of["rows"]:
        name, us = row["problem"], row["us"]["median"]
        if not SHOWN.match(name):
            continue
        peers = ((found["median"], peer) for peer, found in row.get("peers", {}).items() if "median" in found)
        best = min(peers, default=None)
        cells = [name.replace(" peaked, filters", ", filters"), f"{us:.1f}"]
        cells += [f"{best[1]} {best[0]:.1f}", f"{best[0] / us:.2f}"] if best else ["", ""]
        goal = GOALS.get(name)
        cells.append(f"{goal:.0f}" if goal else "")
        yield f"| {' | '.join(cells)} |"


def costs(of: Record) -> Iterator[str]:
    return (f"| {name.partition(', with ')[2]} | {us:.1f} | {over:.2f} |" for name, us, over in adjusted(of))


def adjusted(of: Record) -> Iterator[tuple[str, float, float]]:
    """Problems with an adjustment: their microseconds, and the ratio to the same rows without it."""
    times = {row["problem"]: row["us"]["median"] for row in of["rows"]}
    for name, us in times.items():
        if found := ADJUSTED.match(name):
            yield name, us, us / times[f"{found[1]}, filters none"]


def reasons(of: Record) -> Iterator[str]:
    """A line for each draw that misses its goal, and for each adjustment that costs more than LIMIT."""
    late = [(row["problem"], row["us"]["median"]) for row in of["rows"]]
    needed = [(name, us) for name, us in late if us > GOALS.get(name, float("inf"))]
    needed += [(name, us) for name, us, over in adjusted(of) if over > LIMIT]
    return (f"| sample {name} | {us:.1f} | {why(name)} |" for name, us in needed)
