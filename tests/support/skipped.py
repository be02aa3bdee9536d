"""A pytest plugin, loaded by tests/conftest.py: it ends a run with the skipped tests, one line per reason with its count.

xdist workers drop tests that would be skipped: thousands of tests that need a GPU cost no time in the workers or in the
controller, which gets their number from each worker.
"""

from __future__ import annotations

from collections import Counter

import pytest

MOST = 12  # reasons, one line each
WIDEST = 120


def reason(report) -> str:
    """Why a test was skipped, without pytest's prefix."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    first = text.removeprefix("Skipped: ").strip().partition("\n")[0]
    return first if len(first) <= WIDEST else f"{first[: WIDEST - 3]}..."


_LEFT_OUT = pytest.StashKey[dict[str, int]]()


def skip(config, items: list, reasons: dict) -> None:
    """Skips the tests that have a reason; a worker drops them from `items`, and reports their number."""
    if not hasattr(config, "workeroutput"):
        for item, why in reasons.items():
            item.add_marker(pytest.mark.skip(reason=why))
        return
    items[:] = [item for item in items if item not in reasons]
    config.workeroutput["left_out"] = dict(Counter(reasons.values()))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    """Every worker collected the same tests, so one worker's report is enough; a dead worker reports nothing."""
    told = getattr(node, "workeroutput", {}).get("left_out")
    if told is not None:
        node.config.stash[_LEFT_OUT] = told


def lines(reports, left_out: dict[str, int] | None = None) -> list[str]:
    """The most frequent reason first: `4663 need a GPU`."""
    counts = Counter(map(reason, reports)) + Counter(left_out)
    counted = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    told, rest = counted[:MOST], counted[MOST:]
    if rest:
        told.append((f"for {len(rest)} other reasons: run with -rs", sum(count for _, count in rest)))
    width = max((len(str(count)) for _, count in told), default=0)
    return [f"{count:{width}} {why}" for why, count in told]


def pytest_terminal_summary(terminalreporter) -> None:
    """With xdist only the controller has a terminal, and the reports of all workers."""
    skipped, left_out = terminalreporter.stats.get("skipped", []), terminalreporter.config.stash.get(_LEFT_OUT, {})
    if skipped or left_out:
        terminalreporter.section(f"{len(skipped) + sum(left_out.values())} skipped")
        for line in lines(skipped, left_out):
            terminalreporter.write_line(line)
