"""Errors of the functions of programs over all inputs: `python -m bench.functions [--out FILE]`, on a GPU.

Each unary function runs over all 2^32 f32, and over all f16, bf16 and 8-bit floats. SKUs take their `ulp.*` from the record,
opfacade/programs/measured.json. A function that exceeds its documented error fails, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from bench import records
from opfacade.jit import cache, toolchain
from opfacade.select.registry import harness_for
from opfacade.testing.subject import Subject
from opfacade.tools.verify import machine

RECORD = Path(__file__).resolve().parents[1] / "opfacade/programs/measured.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RECORD)
    records.add_commit(parser)
    words = parser.parse_args()
    rows = []
    for found in harness_for("map").exhaustive(lambda descriptor: Subject(descriptor, "cuda", "cuda"), True):
        print(" ".join(f"{name}={value}" for name, value in found._asdict().items()), flush=True)
        rows.append(found._asdict())
    if any(row["wrong"] for row in rows):
        print("not written: a function exceeds its documented error or its bound")
        return 1
    nvcc = toolchain.find(cache.toolchain_memo()).nvcc
    told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout.strip().splitlines()
    facts = machine("cuda") | {"nvcc": told[-1], "commit": records.commit(words.commit)}
    record = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": facts, "rows": rows}
    words.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
