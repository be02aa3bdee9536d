"""Errors of the functions of programs: `python -m bench.functions [--only NAME ...] [--out FILE]`, on a GPU.

Each unary function runs over all 2^32 f32, and over all f16, bf16 and 8-bit floats. SKUs get their `ulp.*` from the record,
opfacade/programs/measured.json. `--f64` measures the functions of f64 on random arguments against mpmath (`bench/f64.py`), for
`ulp64.*`. A function that exceeds its documented error fails, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import f64, records
from opfacade.jit import cache, toolchain
from opfacade.programs.operations import FUNCTIONS
from opfacade.testing import prebuilt
from opfacade.testing.families._functions import APPLIED, exhausted
from opfacade.testing.subject import Subject
from opfacade.tools.verify import machine

RECORD = Path(__file__).resolve().parents[1] / "opfacade/programs/measured.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument(
        "--only", nargs="+", choices=(*FUNCTIONS, "sqrt"), metavar="NAME", help="others stay as they are on record"
    )
    parser.add_argument("--f64", action="store_true", help="f64 on random arguments")
    parser.add_argument("--count", type=int, default=10**7, help="arguments of each function of f64")
    parser.add_argument("--seconds", type=float, default=120.0, help="after these functions of f64 get fewer arguments")
    records.add_commit(parser)
    words = parser.parse_args()
    found = list(_doubles(words) if words.f64 else _singles(words.only or APPLIED))
    if any(row["wrong"] for row in found):
        print("not written: a function exceeds its documented error or its bound")
        return 1
    words.out.write_text(json.dumps(merged(words.out, found, words), indent=1) + "\n")
    return 0


def _singles(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for found in exhausted(lambda descriptor: Subject(descriptor, "cuda", "cuda"), True, names):
        yield _told(found._asdict())


def _doubles(words: argparse.Namespace) -> Iterator[dict[str, Any]]:
    threads, processes = f64.pools()
    names = [name for name in words.only or FUNCTIONS if name in FUNCTIONS]
    prebuilt.build([f64.problem(name, f64.CHUNK) for name in names])
    with threads, processes, tempfile.TemporaryDirectory() as folder:
        judge = f64.Judge(f64.built(Path(folder)), threads, processes)
        make = lambda descriptor: Subject(descriptor, "cuda", "cuda")  # noqa: E731
        for found in f64.measured(make, judge, words.count, words.seconds, names):
            yield _told(found.row())


def _told(row: dict[str, Any]) -> dict[str, Any]:
    print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)
    return row


def merged(place: Path, rows: list[dict[str, Any]], words: argparse.Namespace) -> dict[str, Any]:
    """The record, with new rows replacing the rows of the same functions. f32 and f64 have separate dates and machines."""
    nvcc = toolchain.find(cache.toolchain_memo()).nvcc
    told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout.strip().splitlines()
    facts = machine("cuda") | {"nvcc": told[-1], "commit": records.commit(words.commit)}
    known = json.loads(place.read_text()) if place.exists() else {"rows": []}
    old = known.get("f64", {"rows": []}) if words.f64 else known
    new = {row["function"] for row in rows}
    kept = [row for row in old["rows"] if row["function"] not in new] if words.only else []
    part = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": facts, "rows": [*kept, *rows]}
    others = {"f64": known["f64"]} if "f64" in known else {}
    return known | {"f64": part} if words.f64 else part | others


if __name__ == "__main__":
    sys.exit(main())
