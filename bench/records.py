"""The files of records: the newest record of each kind is in bench/results, without a date in its name. Older ones are in git's
history."""

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
    """The commit of a record: the argument, otherwise the commit of the checkout; None if the sources are not a checkout."""
    git = shutil.which("git")
    if given or git is None:
        return given
    words = [git, "-C", str(RESULTS), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or None


def place(out: Path | None, kind: str, whole: bool = True) -> Path | None:
    """The file for the record; None if only a part was run and `out` is not set, because a part does not replace the record."""
    if out is None:
        return RESULTS / f"{kind}.json" if whole else None
    return out / f"{kind}.json" if out.is_dir() else out


def write(path: Path | None, record: dict[str, Any]) -> None:
    """Writes a record with the digests of the current kernels, unless it already has digests, from parts that ran earlier."""
    if path:
        record.setdefault("kernels", kernel_digests.stamp())
        path.write_text(json.dumps(record, indent=1) + "\n")
