"""Where a benchmark's record lies: the newest of each kind in bench/results, named without a date. git keeps the older ones."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from opfacade.tools import kernel_digests

RESULTS = Path(__file__).resolve().parent / "results"


def add_out(parser: argparse.ArgumentParser, kind: str) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        help=f"a file, or a folder for {kind}.json; else bench/results/{kind}.json, but nothing where only a part is run",
    )


def add_commit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--commit", help="recorded in place of git's answer, where the sources are no checkout")


def commit(given: str | None) -> str | None:
    """The commit of a record: the one given, else that of the checkout; None where the sources are no checkout."""
    git = shutil.which("git")
    if given or git is None:
        return given
    words = [git, "-C", str(RESULTS), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or None


def place(out: Path | None, kind: str, whole: bool = True) -> Path | None:
    """Where the record goes, or None: a run of a part replaces no record without `out`."""
    if out is None:
        return RESULTS / f"{kind}.json" if whole else None
    return out / f"{kind}.json" if out.is_dir() else out


def write(path: Path | None, record: dict[str, Any]) -> None:
    """Write a record with the kernels that it is of, unless it names them: those of parts that ran before."""
    if path:
        record.setdefault("kernels", kernel_digests.stamp())
        path.write_text(json.dumps(record, indent=1) + "\n")
