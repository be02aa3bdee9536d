"""Runs the GPU tests and records what ran where: `python bench/suite.py [--out FILE] [--commit REV] [pytest arguments]`.

Every random problem is its (op, seed); the record holds how many there were, the worst error over its bound for each op,
and which tests failed or were skipped. Ends with pytest's status.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import torch

from opfacade import env
from opfacade.errors import ToolchainError
from opfacade.jit import cache, toolchain

_RANDOM = re.compile(r"(?P<op>\w+) seed=(?P<seed>\d+) worst=(?P<worst>[\d.]+) tight=(?P<tight>[\d.]+) elements=(?P<n>\d+)")


_SHOWN = re.compile(r"^(?:run_to_run|batch_invariance|negative_control|processes) .*$", re.MULTILINE)


def outcome(case: ET.Element) -> str:
    return next((tag for tag in ("failure", "error", "skipped") if case.find(tag) is not None), "passed")


def compiler() -> str:
    """What could compile a kernel here; without it, all that ran came from a bundle."""
    try:
        nvcc = ".".join(map(str, toolchain.find(cache.toolchain_memo()).nvcc_release))
    except ToolchainError:
        nvcc = "none found"
    return f"nvcc {nvcc}{', not used: OPFACADE_DISABLE_JIT is set' if env.jit_disabled() else ''}"


def ended(command: list[str], limit: float | None) -> tuple[int, bool]:
    """The status of pytest, and whether it came to its end."""
    process = subprocess.Popen(command)
    try:
        return process.wait(limit), True
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it still writes what it knows
        return process.wait(), False


def random_problems(cases: list[ET.Element]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for case in cases:
        for match in _RANDOM.finditer(case.findtext("system-out") or ""):
            row = found.setdefault(match["op"], {"problems": 0, "elements": 0, "worst_over_hard": 0.0, "worst_over_tight": 0.0})
            row["problems"] += 1
            row["elements"] += int(match["n"])
            row["worst_over_hard"] = max(row["worst_over_hard"], float(match["worst"]))
            row["worst_over_tight"] = max(row["worst_over_tight"], float(match["tight"]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit")
    parser.add_argument("--limit", type=float, help="seconds, after which pytest is interrupted and what ran is recorded")
    options, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-o", "addopts=", "-o", "junit_logging=system-out"]
        started = time.time()
        status, whole = ended([*command, "--tb=short", f"--junitxml={report}", *rest], options.limit)
        cases = list(ET.parse(report).getroot().iter("testcase"))
    counts = Counter(outcome(case) for case in cases)
    record = {
        "machine": {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"),
            "commit": options.commit,
            "compiler": compiler(),
        },
        "seconds": round(time.time() - started),
        "ran_to_its_end": whole,
        "counts": dict(counts),
        "random_problems": random_problems(cases),
        "shown": sorted({line for case in cases for line in _SHOWN.findall(case.findtext("system-out") or "")}),
        "not_passed": sorted(f"{c.get('classname')}::{c.get('name')}: {outcome(c)}" for c in cases if outcome(c) != "passed"),
    }
    print(json.dumps(record, indent=1))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
