"""Compares the times of two commits: `python -m bench.between --old FILE... --new FILE... [--out FILE]` anywhere.

The files are records of bench.decode, bench.prefill or bench.append without peers, measured alternately on one machine. A row
contains each commit's median over its files, in microseconds, and the ratio of new to old. The record keeps every figure, so
that a ratio can be compared with the spread of runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import records

TIMES = ("graph_us", "clean_us", "dirty_us", "us")
Record = dict[str, Any]
Name = tuple[str, str, str]


def times(record: Record) -> Iterator[tuple[Name, float]]:
    """The times of a record by problem, implementation and kind of time."""
    tables = [rows for rows in record.values() if isinstance(rows, list)]
    for row in (row for rows in tables for row in rows):
        for kind in (kind for kind in TIMES if kind in row):
            problem = str(row.get("shape", row.get("problem")))
            yield (problem, str(row.get("impl", "opfacade")), kind), row[kind]["median"]


def gathered(of: Sequence[Record]) -> dict[Name, list[float]]:
    """All times in the records; a problem may be in several tables of a record."""
    found: dict[Name, list[float]] = {}
    for record in of:
        for name, value in times(record):
            found.setdefault(name, []).append(round(value, 3))
    return found


def row_of(name: Name, old: list[float], new: list[float]) -> Record:
    problem, impl, kind = name
    ratio = round(median(new) / median(old), 4)
    return {"problem": problem, "impl": impl, "time": kind, "ratio": ratio, "old": old, "new": new}


def rows(old: Sequence[Record], new: Sequence[Record]) -> list[Record]:
    """A row for each time in both commits, the largest slowdown first."""
    before, after = gathered(old), gathered(new)
    found = [row_of(name, before[name], after[name]) for name in after if name in before]
    return sorted(found, key=lambda row: -float(row["ratio"]))


def commits(of: Sequence[Record]) -> list[str]:
    return sorted({str(record["machine"]["commit"]) for record in of})


def compared(old: Sequence[Record], new: Sequence[Record]) -> Record:
    if len(commits(old)) != 1 or len(commits(new)) != 1:
        raise SystemExit(f"each side needs one commit: old has {commits(old)}, new has {commits(new)}")
    machine = new[0]["machine"]
    return {"machine": machine, "old": commits(old)[0], "rows": rows(old, new), "kernels": new[0]["kernels"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", nargs="+", type=Path, required=True)
    parser.add_argument("--new", nargs="+", type=Path, required=True)
    records.add_out(parser, "between")
    options = parser.parse_args()
    record = compared(*([json.loads(path.read_text()) for path in paths] for paths in (options.old, options.new)))
    records.write(records.place(options.out, "between"), record)
    for row in record["rows"]:
        print(f"{row['ratio']:.4f} {row['problem']}, {row['impl']}, {row['time']}")


if __name__ == "__main__":
    main()
