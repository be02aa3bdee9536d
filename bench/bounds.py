"""Limits of the kernels that are below their target, by ncu's counters: `python -m bench.bounds [--only NAMES] [--out FILE]`.

Each piece of work is run under ncu once, its kernel built before, L2 cold, clocks left alone. A row has the time and the clock
of that run, how busy each part of the GPU was in percent of what it could have done in that time, and what warps waited for
between two of their instructions. ncu runs a kernel several times and alone: its times are for a row's own percentages, not for
comparing with a benchmark.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import torch

from bench import attention, batches, decode, mla, prefill, records
from bench.attention import CUDA, machine
from opfacade import Plan
from opfacade.testing import inputs

SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "WarpStateStats", "SchedulerStats")
# Parts of the GPU, and the counters that say how busy they were.
BUSY = {
    "tensor cores": "sm__pipe_tensor_cycles_active",
    "instructions": "sm__inst_issued",
    "exponentials": "sm__inst_executed_pipe_xu",
    "f32": "sm__pipe_fma_cycles_active",
    "shared memory and L1": "l1tex__data_pipe_lsu_wavefronts",
    "L2": "lts__throughput",
    "memory": "gpu__dram_throughput",
}
Problem = tuple[str, Any, Any]


def decodes() -> Iterator[Problem]:
    wanted = (
        "b1 kv131072",
        "b8 kv16384",
        "b64 kv4096 page1",
        "b64 kv4096",
        "skew 65536 + 63x1024",
        "b64 kv4096 dtypef8_e4m3",
        "b1 kv4096",
    )
    shapes = {shape.name: shape for shape in (*decode.LONG, *decode.VARIANTS, *decode.SHORT)}
    for name in wanted:
        descriptor = shapes[name].descriptor()
        yield f"decode {name}", descriptor, shapes[name].args(descriptor)


def prefills() -> Iterator[Problem]:
    page1 = next(shape for shape in prefill.PAGES if shape.page == 1)
    for shape in (*prefill.PARTS["table"], page1, *prefill.FP8):
        yield f"prefill {shape.name}", *attention.problem(shape)
    for shape in prefill.UNEVEN:
        yield f"prefill {shape.name}", *attention.dense_problem(shape)


def changed() -> Iterator[Problem]:
    for batch in batches.changed():
        if re.search("ALiBi|e4m3", batch.name):
            yield f"prefill {batch.name}", batch.work.descriptor, batches.args_of(batch)


def latent() -> Iterator[Problem]:
    for shape in mla.SHAPES:
        if shape.split == "auto" and shape.page != 1:
            descriptor = shape.descriptor()
            yield (
                f"mla {shape.name}",
                descriptor,
                inputs.make_args(descriptor, 1, "cuda", inputs.DrawnLengths(kv=shape.lengths)),
            )


def problems(only: str) -> Iterator[Problem]:
    for family in (decodes, prefills, changed, latent):
        for problem in family():
            if re.search(only, problem[0]):
                yield problem
                torch.cuda.empty_cache()


def run_all(only: str, profiled: bool) -> list[str]:
    """Each kernel once, and where profiled once more, for ncu to see. Returns their names."""
    names = []
    for name, descriptor, args in problems(only):
        names.append(name)
        plan: Plan[Any] = Plan.select(descriptor, CUDA)
        workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
        plan.run(args, workspace)
        torch.cuda.synchronize()
        if profiled:
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
            plan.run(args, workspace)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
    return names


def ncu(only: str) -> list[dict[str, str]]:
    """A row of counters for each kernel of the profiled runs, in their order."""
    tool = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    sections = [word for section in SECTIONS for word in ("--section", section)]
    how = ["--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base"]
    child = [sys.executable, "-m", "bench.bounds", "--only", only, "--profiled"]
    done = subprocess.run([tool, *how, *sections, *child], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    table = lines[next(i for i, line in enumerate(lines) if line.startswith('"ID"')) :]
    head, _units, *rows = csv.reader(table)
    return [dict(zip(head, row, strict=True)) for row in rows]


def summary(row: dict[str, str]) -> dict[str, Any]:
    counters = {name: float(value.replace(",", "")) for name, value in row.items() if re.fullmatch(r"[\d,]+(\.\d+)?", value)}
    found = (re.search(r"issue_stalled_(\w+)_per_issue_active", name) for name in counters)
    stalls = {match[1]: counters[match.string] for match in found if match}
    most = sorted(stalls, key=lambda name: -stalls[name])[:4]
    return {
        "kernel": row["Kernel Name"],
        "us": round(counters["gpu__time_duration.sum"] / 1e3, 1),
        "GHz": round(counters["gpc__cycles_elapsed.avg.per_second"] / 1e9, 2),
        "busy_percent": {part: round(counters[f"{name}.avg.pct_of_peak_sustained_elapsed"], 1) for part, name in BUSY.items()},
        "waits_percent": {name: round(100 * stalls[name] / sum(stalls.values()), 1) for name in most},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="work whose name this regular expression finds")
    parser.add_argument("--profiled", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--commit", help="recorded in place of git's answer")
    records.add_out(parser, "bounds")
    options = parser.parse_args()
    out = records.place(options.out, "bounds", not options.only)
    if options.profiled:
        run_all(options.only, profiled=True)
        return
    names = run_all(options.only, profiled=False)
    counted = [row for row in ncu(options.only) if "merge" not in row["Kernel Name"]]
    record: dict[str, Any] = {"machine": machine(), "rows": []}
    record["machine"]["commit"] = options.commit or record["machine"]["commit"]
    record["rows"] = [{"work": name, **summary(row)} for name, row in zip(names, counted, strict=True)]
    for row in record["rows"]:
        print(json.dumps(row))
    records.write(out, record)


if __name__ == "__main__":
    main()
