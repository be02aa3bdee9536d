"""A record as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any


def table(record: dict[str, Any]) -> Any:
    """A rich table: the contenders of each problem, with the fastest marked, and the machine's ceilings."""
    from rich.table import Table

    where, top = record["machine"], record["ceilings"]
    title = f"{where['device']}, {record['timer']}; at most {top['TBs']:.3g} TB/s, {top['TFLOPs']:.3g} TFLOP/s"
    shown = Table(title=title)
    for name in ("problem", "contender", "us", "+-", "TB/s", "TFLOP/s", "error/bound"):
        shown.add_column(name, justify="left" if name in ("problem", "contender") else "right", overflow="fold")
    for rows in problems(record):
        best = fastest(rows)
        for row in rows:
            name = row["name"] if row is rows[0] else ""
            shown.add_row(name, row["impl"], *_cells(row), style="bold" if row is best else None)
        shown.add_section()
    return shown


def problems(record: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """The rows of each problem."""
    for _, rows in groupby(record["rows"], key=lambda row: row["problem"]):
        yield list(rows)


def fastest(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    return min((row for row in rows if "us" in row), key=lambda row: float(row["us"]), default=None)


def duration(us: float) -> str:
    """A time with its unit and three digits."""
    return f"{us / 1000:.3g} ms" if us >= 10_000 else f"{us:.0f} us" if us >= 100 else f"{us:.3g} us"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if "us" not in row:
        word = "WRONG: " if "wrong" in row else ""
        return (word + row.get("wrong", row.get("declined", ""))[:60], "", "", "", "")
    return (
        f"{row['us']:.2f}",
        f"{row['noise']:.1%}",
        f"{row['TBs']:.3g}",
        f"{row['TFLOPs']:.3g}",
        f"{row['error_over_bound']:.2g}",
    )
