"""Runs the GPU tests and records what ran where: `python -m bench.suite [--out FILE] [--commit REV] [pytest arguments]`.

`--jobs N` runs the tests in N processes at a time, spread over the GPUs here. If one machine may not run that long: `--part 1/3
--out A`, and so on, then `--join A B C --out FILE`. Parts of another size, such as 5/6 and 6/6 for 3/3, may replace a part that
was interrupted. A random problem is identified by (op, seed); the record contains their number, the largest error over its
bound for each op, and the failed and skipped tests. Ends with pytest's status.
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
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from bench import gpus, records
from bench.suite_part import cut
from opfacade import env
from opfacade.errors import ToolchainError
from opfacade.jit import cache, toolchain

_RANDOM = re.compile(r"(?P<op>\w+) seed=(?P<seed>\d+) worst=(?P<worst>[\d.]+) tight=(?P<tight>[\d.]+) elements=(?P<n>\d+)")


_SHOWN = re.compile(r"^(?:run_to_run|batch_invariance|negative_control|processes) .*$", re.MULTILINE)


def outcome(case: ET.Element) -> str:
    return next((tag for tag in ("failure", "error", "skipped") if case.find(tag) is not None), "passed")


def compiler() -> str:
    """The compiler on this machine; without one, all kernels came from a bundle."""
    try:
        nvcc = ".".join(map(str, toolchain.find(cache.toolchain_memo()).nvcc_release))
    except ToolchainError:
        nvcc = "none found"
    return f"nvcc {nvcc}{', not used: OPFACADE_DISABLE_JIT is set' if env.jit_disabled() else ''}"


def ended(command: list[str], limit: float | None) -> tuple[int, bool]:
    """The status of pytest, and whether it finished."""
    process = subprocess.Popen(command)
    try:
        return process.wait(limit), True
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it still writes its partial results
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


def run(options: argparse.Namespace, rest: list[str]) -> tuple[dict[str, Any], int]:
    """The record of one process of pytest, and its status."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-o", "addopts=", "-o", "junit_logging=system-out"]
        command += ["-p", "bench.suite_part", f"--part={options.part}", "--tb=short", f"--junitxml={report}"]
        started = time.time()
        status, whole = ended([*command, *rest], options.limit)
        cases = list(ET.parse(report).getroot().iter("testcase")) if report.exists() else []  # none if it was cut off early
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
        "part": options.part,
        "seconds": round(time.time() - started),
        "ran_to_its_end": whole,
        "counts": dict(Counter(outcome(case) for case in cases)),
        "random_problems": random_problems(cases),
        "shown": sorted({line for case in cases for line in _SHOWN.findall(case.findtext("system-out") or "")}),
        "not_passed": sorted(f"{c.get('classname')}::{c.get('name')}: {outcome(c)}" for c in cases if outcome(c) != "passed"),
    }
    return record, status


def spread(options: argparse.Namespace, rest: list[str], jobs: int) -> tuple[dict[str, Any], int]:
    """Runs all tests in `jobs` parallel processes, and returns their joined record and the largest exit status. There are two
    parts per process, so that a part with long tests delays the end less."""
    count, deadline = 2 * jobs, time.monotonic() + (options.limit or float("inf"))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:

        def ran(number: int) -> int:
            command = [sys.executable, "-m", "bench.suite", "--part", f"{number}/{count}", "--out", f"{folder}/{number}.json"]
            command += ["--commit", options.commit] if options.commit else []
            command += ["--limit", str(max(1.0, deadline - time.monotonic()))] if options.limit else []
            return subprocess.run([*command, *rest], env=gpus.environment(number), stdout=subprocess.DEVNULL).returncode

        numbers = range(1, count + 1)
        status = max(pool.map(ran, numbers))
        return joined([json.loads(Path(folder, f"{number}.json").read_text()) for number in numbers]), status


def part(text: str) -> str:
    cut(text)
    return text


def span(part: str) -> tuple[Fraction, Fraction]:
    """Where a part begins and ends, as fractions of the suite."""
    which, count = cut(part)
    return Fraction(which - 1, count), Fraction(which, count)


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Joins the records of all parts of one suite; smaller parts may replace an interrupted part. Raises ValueError if a part
    is missing or belongs to another suite."""
    parts = sorted(parts, key=lambda part: span(part["part"]))
    spans = [span(part["part"]) for part in parts]
    if [Fraction(0), *(end for _, end in spans)] != [*(start for start, _ in spans), Fraction(1)]:
        raise ValueError(f"expected all parts of one suite, each once, got {', '.join(part['part'] for part in parts)}")
    if any(part["machine"] | {"date": ""} != parts[0]["machine"] | {"date": ""} for part in parts):
        raise ValueError("expected parts of one commit, run on machines alike")
    if any(part.get("kernels") != parts[0].get("kernels") for part in parts):
        raise ValueError("expected parts of the same kernels")
    problems: dict[str, dict[str, float]] = {}
    for part in parts:
        for op, row in part["random_problems"].items():
            known = problems.setdefault(op, dict.fromkeys(row, 0))
            for name, value in row.items():
                known[name] = max(known[name], value) if name.startswith("worst") else known[name] + value
    not_passed = sorted({name for part in parts for name in part["not_passed"]})  # without double entries of skipped modules
    cut_off = sum(not part["ran_to_its_end"] for part in parts)
    told = Counter(name.rpartition(": ")[2] for name in not_passed)
    return {
        "machine": parts[-1]["machine"],
        "kernels": parts[-1].get("kernels"),
        "note": f"In {len(parts)} processes{f'; cut off: {cut_off}' if cut_off else ''}.",
        "seconds": sum(part["seconds"] for part in parts),
        "ran_to_its_end": all(part["ran_to_its_end"] for part in parts),
        "counts": {"passed": sum(part["counts"].get("passed", 0) for part in parts), **told},
        "random_problems": problems,
        "shown": sorted({line for part in parts for line in part["shown"]}),
        "not_passed": not_passed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    records.add_out(parser, "suite")
    parser.add_argument("--commit")
    parser.add_argument("--limit", type=float, help="seconds, after which pytest is interrupted and what ran is recorded")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time; default 1")
    parser.add_argument("--part", default="1/1", type=part, help="I/N: only this one of N parts")
    parser.add_argument("--join", type=Path, nargs="+", metavar="RECORD", help="of all parts; runs nothing")
    options, rest = parser.parse_known_args()
    if options.join:
        record, status = joined([json.loads(path.read_text()) for path in options.join]), 0
    elif options.jobs > 1:
        record, status = spread(options, rest, options.jobs)
    else:
        record, status = run(options, rest)
    print(json.dumps(record, indent=1))
    whole = bool(options.join) or (options.part == "1/1" and set(rest) <= {"--heavy"})
    records.write(records.place(options.out, "suite", whole), record)
    return status


if __name__ == "__main__":
    sys.exit(main())
