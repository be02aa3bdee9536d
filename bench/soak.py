"""Processes, threads and minutes: `python -m bench.soak [--processes 10] [--threads 8] [--minutes 30] [--device cuda]`.

Each process has threads that select plans of new sizes, run them on the CPU reference (or on GPU kernels, each thread on its
own stream; forked children use the reference) and check every result, fork children that also run plans, publish entries to a
shared cache, clean it and collect garbage. The first process resets its counters repeatedly; the others must count every run,
including their children's. Fails if a result is wrong, a count is lost, a process or a child hangs (it is late and uses no
CPU), or memory grows in the second half. Prints a line per process and writes no record.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import soaking
from opfacade.telemetry import file as telemetry_file

PATIENCE = 90.0  # seconds that a process may take longer
MOST_PLANS = 4096  # the default limit of a process
MOST_GROWTH = 8 << 20  # bytes by which a process may grow in the second half


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--plans", type=int, help="plans that a process keeps: memory is flat once they are there")
    parser.add_argument("--sizes", type=int, default=4400, help="selected before the time begins, until memory is flat")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    asked = parser.parse_args(argv)
    asked.plans = asked.plans or plans_of(asked.minutes)
    with tempfile.TemporaryDirectory(prefix="opfacade-soak-") as place:
        faults = soak(Path(place), asked)
    print(*(f"FAIL: {fault}" for fault in faults), f"{len(faults)} faults", sep="\n")
    return bool(faults)


def plans_of(minutes: float) -> int:
    """Limits the number of cached plans, so that caches are full long before the second half, in which memory must not grow."""
    return min(MOST_PLANS, max(64, round(150 * minutes)))


def soak(place: Path, asked: argparse.Namespace) -> list[str]:
    """The faults, a line each."""
    end = time.monotonic() + 60 * asked.minutes + PATIENCE
    workers = [_start(place, number, asked) for number in range(asked.processes)]
    told, faults = [], []
    for number, worker in enumerate(workers):
        ended = _ended(worker, end)
        if ended is None:
            worker.send_signal(signal.SIGUSR1)  # prints its stack to stderr
            time.sleep(1)
            worker.kill()
            faults.append(f"process {number} hangs: {worker.communicate()[1][-3000:]}")
            continue
        out, err = ended
        if worker.returncode:
            faults.append(f"process {number} ended with {worker.returncode}: {err[-3000:]}")
            continue
        told.append(json.loads(out.splitlines()[-1]))
        if told[-1]["errors"]:
            faults.append(f"process {number} printed: {err[-3000:]}")
        print(f"process {number}:", ", ".join(f"{name} {value}" for name, value in told[-1].items()), flush=True)
        faults += [f"process {number}: {fault}" for fault in judged(told[-1])]
    return faults or lost(place / "counts.jsonl", sum(one["runs"] for one in told[1:]))


def _ended(worker: subprocess.Popen[str], end: float) -> tuple[str, str] | None:
    """The output of a process that ended. None if it hangs: it is late and has used no CPU for a while."""
    used = 0.0
    for _ in range(soaking.MOST_WINDOWS):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return worker.communicate(timeout=max(end - time.monotonic(), soaking.CHILD_SECONDS))
        before, used = used, soaking.cpu_seconds(worker.pid)
        if used < before + soaking.LEAST_WORK:
            break
    return None


def judged(told: dict[str, Any]) -> list[str]:
    """The faults in the report of one process."""
    found = [str(error) for error in told["errors"]]
    if told["grown_bytes"] > MOST_GROWTH:
        found.append(f"memory grew by {told['grown_bytes']} bytes over the second half")
    if not told["runs"]:
        found.append("nothing ran")
    return found


def lost(path: Path, runs: int) -> list[str]:
    """Whether the file of counters contains exactly the runs of all processes except the first, and no damaged line."""
    if not path.exists():
        return [] if not runs else [f"{runs} runs, and no line of counters"]
    total, broken = telemetry_file.read(path)
    counted = sum(sku.get("runs", 0) for sku in total["skus"].values())
    found = [f"{broken} broken lines of counters"] if broken else []
    return found if counted == runs else [*found, f"{runs} runs were made, {counted} were counted"]


def _start(place: Path, number: int, asked: argparse.Namespace) -> subprocess.Popen[str]:
    counts = place / ("counts.jsonl" if number else "forgotten.jsonl")
    environment = os.environ | {
        "OPFACADE_TELEMETRY_FILE": str(counts), "OPFACADE_TELEMETRY_SAMPLE": "0.5", "OPFACADE_CACHE_DIR": str(place / "cache"),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    if asked.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    told = [number, asked.threads, 60 * asked.minutes, asked.plans, asked.device, asked.sizes]
    command = [sys.executable, "-m", "bench.soaking", *map(str, told)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


if __name__ == "__main__":
    sys.exit(main())
