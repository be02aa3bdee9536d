"""Measures with ncu what limits kernels that miss their target: `python -m bench.bounds [--only NAMES] [--out FILE]`.

Each problem runs under ncu once, with a built kernel, a cold L2 and unlocked clocks. A row contains the time and the clock of
that run, the utilisation of each part of the GPU in percent of its peak, what warps waited for between two instructions, and
the launch. If a call has several kernels, the row shows the longest one. ncu runs a kernel several times and alone, so its
times only explain the percentages of the row; do not compare them with a benchmark.

`--only '^(rows|maps|sample) ' --out bench/results/program_bounds.json` runs the problems of bench/slower.py: programs for which
a peer is faster, together with the peer's kernel; large programs that miss their goal; and samples that have a goal. If a
record contains all these programs, `asked` contains the goals and the names.
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
from functools import partial
from typing import Any

import torch

from bench import attention, batches, decode, mla, prefill, records, slower
from bench.attention import CUDA, machine
from bench.slower import Call, Work
from opfacade import Plan
from opfacade.testing import inputs

SECTIONS = (
    *("SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "WarpStateStats", "SchedulerStats"),
    *("LaunchStats", "Occupancy", "InstructionStats"),
)
MARK = "spin_kernel"  # of torch.cuda._sleep, which runs before each problem
# Parts of the GPU, and the counters of their utilisation.
BUSY = {
    "tensor cores": "sm__pipe_tensor_cycles_active",
    "instructions": "sm__inst_issued",
    "exponentials": "sm__inst_executed_pipe_xu",
    "f32": "sm__pipe_fma_cycles_active",
    "shared memory and L1": "l1tex__data_pipe_lsu_wavefronts",
    "L2": "lts__throughput",
    "memory": "gpu__dram_throughput",
}
# The launch, and its total counts.
LAUNCH = {
    "grid": "launch__grid_size",
    "threads": "launch__block_size",
    "registers": "launch__registers_per_thread",
    "waves": "launch__waves_per_multiprocessor",
    "instructions": "smsp__inst_executed.sum",
    "warps_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "room_percent": "sm__maximum_warps_per_active_cycle_pct",
}


def ours(descriptor: Any, args: Any) -> Call:
    plan: Plan[Any] = Plan.select(descriptor, CUDA)
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
    return lambda: plan.run(args, workspace)


def decodes() -> Iterator[Work]:
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
        yield f"decode {name}", partial(lambda shape, of: ours(of, shape.args(of)), shapes[name], descriptor)


def prefills() -> Iterator[Work]:
    page1 = next(shape for shape in prefill.PAGES if shape.page == 1)
    for shape in (*prefill.PARTS["table"], page1, *prefill.FP8):
        yield f"prefill {shape.name}", partial(lambda of: ours(*attention.problem(of)), shape)
    for dense in prefill.UNEVEN:
        yield f"prefill {dense.name}", partial(lambda of: ours(*attention.dense_problem(of)), dense)


def changed() -> Iterator[Work]:
    for batch in batches.changed():
        if re.search("ALiBi|e4m3", batch.name):
            yield f"prefill {batch.name}", partial(lambda of: ours(of.work.descriptor, batches.args_of(of)), batch)


def latent() -> Iterator[Work]:
    for shape in mla.SHAPES:
        if shape.split == "auto" and shape.page != 1:
            descriptor, lengths = shape.descriptor(), inputs.DrawnLengths(kv=shape.lengths)
            yield (
                f"mla {shape.name}",
                partial(lambda of, drawn: ours(of, inputs.make_args(of, 1, "cuda", drawn)), descriptor, lengths),
            )


def works(only: str) -> Iterator[Work]:
    for family in (decodes, prefills, changed, latent, slower.works):
        for name, make in family():
            if re.search(only, name):
                yield name, make
                torch.cuda.empty_cache()


def run_all(only: str, profiled: bool) -> list[str]:
    """Runs each call once, and again under the profiler if ncu is present. Returns the names."""
    names = []
    for name, make in works(only):
        names.append(name)
        run = make()
        run()
        torch.cuda.synchronize()
        if profiled:
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
            torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
            run()
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
    return names


def ncu(only: str) -> list[list[dict[str, str]]]:
    """The counters of each kernel of each profiled run, in order."""
    tool = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    sections = [word for section in SECTIONS for word in ("--section", section)]
    how = ["--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base"]
    child = [sys.executable, "-m", "bench.bounds", "--only", only, "--profiled"]
    done = subprocess.run([tool, *how, *sections, *child], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    table = lines[next(i for i, line in enumerate(lines) if line.startswith('"ID"')) :]
    head, _units, *rows = csv.reader(table)
    found: list[list[dict[str, str]]] = []
    for row in (dict(zip(head, row, strict=True)) for row in rows):
        if MARK in row["Kernel Name"]:
            found.append([])
        else:
            found[-1].append(row)
    return found


def numbers(row: dict[str, str]) -> dict[str, float]:
    number = r"[\d,]+(\.\d+)?(e[+-]?\d+)?"
    return {name: float(value.replace(",", "")) for name, value in row.items() if re.fullmatch(number, value)}


def dram_bytes(kernels: list[dict[str, str]]) -> dict[str, int]:
    """The bytes that DRAM read and wrote in a call; None unless ncu counted them for each kernel."""
    each = [numbers(row) for row in kernels]
    rate, ns = "dram__bytes.sum.per_second", "gpu__time_duration.sum"
    if not all(rate in row for row in each):
        return {}
    return {"dram_bytes": round(sum(row[rate] * row[ns] * 1e-9 for row in each))}


def summary(kernels: list[dict[str, str]]) -> dict[str, Any]:
    """The figures of the longest kernel of a call."""
    row = max(kernels, key=lambda row: numbers(row)["gpu__time_duration.sum"])
    counters = numbers(row)
    found = (re.search(r"issue_stalled_(\w+)_per_issue_active", name) for name in counters)
    stalls = {match[1]: counters[match.string] for match in found if match}
    most = sorted(stalls, key=lambda name: -stalls[name])[:4]
    return {
        "kernel": row["Kernel Name"],
        "kernels": len(kernels),
        "us": round(counters["gpu__time_duration.sum"] / 1e3, 1),
        "GHz": round(counters["gpc__cycles_elapsed.avg.per_second"] / 1e9, 2),
        "busy_percent": {part: round(counters[f"{name}.avg.pct_of_peak_sustained_elapsed"], 1) for part, name in BUSY.items()},
        "waits_percent": {name: round(100 * stalls[name] / sum(stalls.values()), 1) for name in most},
        "launch": {name: counters[counter] for name, counter in LAUNCH.items() if counter in counters},
        **dram_bytes(kernels),
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
    counted = ncu(options.only)
    record: dict[str, Any] = {"machine": machine(), "rows": []}
    record["machine"]["commit"] = options.commit or record["machine"]["commit"]
    record["rows"] = [{"work": name, **summary(kernels)} for name, kernels in zip(names, counted, strict=True)]
    asked = slower.asked()
    if set(asked["works"]) <= set(names):
        record["asked"] = asked
    for row in record["rows"]:
        print(json.dumps(row))
    records.write(out, record)


if __name__ == "__main__":
    main()
