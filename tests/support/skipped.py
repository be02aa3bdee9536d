"""Ends a run with what was skipped and why, a line a reason with its count. A plugin of pytest; tests/conftest.py has it."""

from __future__ import annotations

from collections import Counter

MOST = 12  # reasons, each with a line of its own
WIDEST = 120


def reason(report) -> str:
    """Why a test was skipped, without pytest's own word before it."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    first = text.removeprefix("Skipped: ").strip().partition("\n")[0]
    return first if len(first) <= WIDEST else f"{first[: WIDEST - 3]}..."


def lines(reports) -> list[str]:
    """The most frequent reason first: `4663 need a GPU`."""
    counted = sorted(Counter(map(reason, reports)).items(), key=lambda pair: (-pair[1], pair[0]))
    told, rest = counted[:MOST], counted[MOST:]
    if rest:
        told.append((f"for {len(rest)} other reasons: run with -rs", sum(count for _, count in rest)))
    width = max((len(str(count)) for _, count in told), default=0)
    return [f"{count:{width}} {why}" for why, count in told]


def pytest_terminal_summary(terminalreporter) -> None:
    """Under xdist the controller alone has a terminal, and the reports of all workers."""
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section(f"{len(skipped)} skipped")
        for line in lines(skipped):
            terminalreporter.write_line(line)
