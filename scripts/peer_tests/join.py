"""Joins the tables of scripts/flashinfer_tests into a record: `python scripts/peer_tests/join.py TABLE... --tests COMMIT`.

COMMIT is the FlashInfer commit whose tests ran. If a test file ran several times, the last table with it counts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import records
from bench.attention import machine


def joined(tables: list[dict[str, Any]]) -> dict[str, Any]:
    """The counts per file and in total, the number of tests per reason, and the failed tests."""
    files = {name: counts for table in tables for name, counts in table["files"].items()}
    of = {name: table for table in tables for name in table["files"]}
    used = [table for table in tables if any(found is table for found in of.values())]
    total: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for counts in files.values():
        total.update(counts)
    for table in used:
        reasons.update(table["reasons"])
    failed = sorted(
        {test for name, table in of.items() for test in table["failed"] if Path(test.partition("::")[0]).stem == name}
    )
    return {"all": dict(total), "files": dict(sorted(files.items())), "reasons": dict(reasons.most_common()), "failed": failed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--tests", required=True, help="the commit of FlashInfer whose tests ran")
    parser.add_argument("--machine-of", type=Path, help="a record made where the tests ran; else of this machine")
    records.add_commit(parser)
    records.add_out(parser, "flashinfer_tests")
    options = parser.parse_args()
    found = joined([json.loads(path.read_text()) for path in options.tables])
    facts = json.loads(options.machine_of.read_text())["machine"] if options.machine_of else machine()
    record = {"machine": facts | {"commit": records.commit(options.commit)}, "tests_of": options.tests, **found}
    records.write(records.place(options.out, "flashinfer_tests"), record)
    print(json.dumps(found["all"]))


if __name__ == "__main__":
    main()
