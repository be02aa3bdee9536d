"""Tables of sampling for docs/ops/sampling.md: draws beside the fastest peer, and what each adjustment costs.

The last column says what limits a draw that takes longer than its goal, and an adjustment that costs more than LIMIT.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench import limits, operators
from bench.operators import Record

HEAD = ["| work | us | fastest peer, us | speed-up over it | goal, us | why |", "|---|---|---|---|---|---|"]
COSTS = ["| adjustment | us | over none | why |", "|---|---|---|---|"]
LEGEND = (
    "cycles in which an instruction issued, warps of those that fit, what memory moved of what it can, waves of CTAs, and what "
    "DRAM moved over the bytes of the logits"
)
ADJUSTMENTS = (
    "Adjustments of 64 rows of 128256 f32 logits, without filters. Penalties that lower logits are those of most requests; in "
    "the other row some requests raise logits."
)
SHOWN = re.compile(r"^\d+ x 128256 \w+ peaked, filters ")
ADJUSTED = re.compile(r"^(.*), with (.*)$")
GOALS = {f"{rows} x 128256 f32 peaked, filters k and p": us for rows, us in ((1, 10.0), (64, 20.0), (256, 60.0))}
LIMIT = 1.05  # of the time without the adjustment
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
        cells += [f"{goal:.0f}", why(name) if us > goal else ""] if goal else ["", ""]
        yield f"| {' | '.join(cells)} |"


def costs(of: Record) -> Iterator[str]:
    times = {row["problem"]: row["us"]["median"] for row in of["rows"]}
    for name, us in times.items():
        if found := ADJUSTED.match(name):
            over = us / times[f"{found[1]}, filters none"]
            yield f"| {found[2]} | {us:.1f} | {over:.2f} | {why(name) if over > LIMIT else ''} |"
