"""Compile times on this machine: `python -m bench.compile [--flashinfer DIR] [--out FILE]`. Needs no GPU.

Every EXAMPLE for one architecture: built alone from an empty cache (wall and CPU seconds, medians of three), the whole set at
once, and the warm load in a new process. DIR holds an unpacked FlashInfer package, whose modules for the same work are then
built by the same compiler in the same run. CPU seconds include all processes of a build; on a shared machine they are more
reliable than wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import tvm_ffi

from bench import records
from opfacade import Plan, Target, jit
from opfacade.jit import cache, toolchain
from opfacade.select.registry import examples
from opfacade.tools.warmup import warmup

BUILDS = 3  # builds of each kernel; wall times of one kernel differ by less than 3 %, and there are more than 100 kernels
HERE = Path(__file__).resolve().parent
WARM = """
import sys, time
import tvm_ffi
from opfacade import Plan, Target, jit
from opfacade.select.registry import load_descriptor
from opfacade.jit import build, cache, codegen, toolchain
import jinja2, ninja
plan = Plan.select(load_descriptor(sys.argv[1]), target=Target.parse(sys.argv[2]))
started = time.perf_counter()
jit.load(plan.jit_spec, allow_build=False)
print((time.perf_counter() - started) * 1000)
"""


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(action: Callable[[], Any]) -> dict[str, float]:
    wall, cpu = time.perf_counter(), cpu_seconds()
    action()
    return {"wall_s": round(time.perf_counter() - wall, 2), "cpu_s": round(cpu_seconds() - cpu, 2)}


@contextmanager
def empty_cache() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as place:
        os.environ["OPFACADE_CACHE_DIR"] = place
        yield


def identify_compilers() -> None:
    _ = toolchain.find(cache.toolchain_memo()).identity


def alone(plan: Plan[Any]) -> dict[str, Any]:
    """Cold builds, each from an empty cache (medians), and warm loads of the last build."""
    assert plan.jit_spec is not None
    colds = []
    for left in reversed(range(BUILDS)):
        with empty_cache():
            identify_compilers()
            jit.forget()
            colds.append(measured(lambda: jit.build(plan.jit_spec)))
            if left == 0:
                argv = [sys.executable, "-c", WARM, plan.descriptor.model_dump_json(), plan.target.arch]
                loads = [float(subprocess.run(argv, check=True, capture_output=True, text=True).stdout) for _ in range(3)]
                size = jit.build(plan.jit_spec).stat().st_size
    row = {name: round(median(cold[name] for cold in colds), 2) for name in colds[0]}
    walls = {"walls_s": [cold["wall_s"] for cold in colds]}
    return {"module": plan.sku.id, **row, **walls, "warm_load_ms": round(median(loads), 1), "bytes": size}


def ours(target: Target) -> dict[str, Any]:
    import jinja2  # noqa: F401, imported here so that no build is charged for it

    plans = [Plan.select(descriptor, target=target) for descriptor in examples()]
    with empty_cache():
        digests = measured(identify_compilers)
    kernels = [plan for plan in plans if plan.jit_spec is not None]
    rows = []
    for done, plan in enumerate(kernels, 1):
        rows.append(alone(plan))
        print(f"{done} of {len(kernels)}: {rows[-1]['wall_s']} s {short(plan.sku.id)}", file=sys.stderr, flush=True)
    with empty_cache():
        identify_compilers()
        together = measured(lambda: warmup(examples(), target))
    return {"compiler_digests": digests, "alone": rows, "together": {"modules": len(rows), **together}}


def flashinfer(place: Path, cuda_home: Path) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as work:
        argv = [sys.executable, str(HERE / "compile_flashinfer.py"), f"{work}/w", str(cuda_home)]
        path = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)
        rows = []
        for line in process.stdout or ():
            if line.startswith("{"):
                rows.append(json.loads(line))
                print(line, end="", flush=True)
        if process.wait() != 0:
            raise SystemExit("FlashInfer did not build")
    return rows


def machine(tools: toolchain.Toolchain) -> dict[str, Any]:
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    release = subprocess.run([tools.nvcc, "--version"], capture_output=True, text=True).stdout.split("\n")
    head = subprocess.run(["git", "-C", HERE, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    facts = {
        "commit": head,
        "cpu": model,
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
    }
    return {"date": date.today().isoformat(), **facts, "nvcc": release[3].split("V")[-1], "tvm_ffi": tvm_ffi.__version__}


def markdown(result: dict[str, Any]) -> str:
    rows = ["| what | wall s | CPU s | warm load ms | KB |", "|---|---|---|---|---|"]
    together = result["opfacade"]["together"]
    whole = {"module": f"all {together['modules']} at once", **together}
    for row in [*result["opfacade"]["alone"], whole, *result.get("flashinfer", [])]:
        size = f"{row['bytes'] / 1024:.0f}" if "bytes" in row else ""
        rows.append(f"| {short(row['module'])} | {row['wall_s']} | {row['cpu_s']} | {row.get('warm_load_ms', '')} | {size} |")
    return "\n".join(rows)


def short(module: str) -> str:
    """`paged_decode bf16 head_dim=128` for a SKU id."""
    parts = module.split("/")
    if len(parts) < 6:
        return module
    dtype = parts[5].split(",")[0].split("=")[-1]
    dim = next((fact for fact in parts[7].split(",") if fact.startswith("head_dim")), "")
    return f"{parts[1]} {dtype} {dim}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flashinfer", type=Path, help="directory with an unpacked FlashInfer package")
    parser.add_argument("--target", default="sm_90a")
    records.add_out(parser, "compile")
    options = parser.parse_args()
    os.environ["OPFACADE_JIT_STRICT"] = "1"  # the shipped kernels have no slow code
    out = records.place(options.out, "compile_flashinfer" if options.flashinfer else "compile")
    with empty_cache():
        tools = toolchain.find(cache.toolchain_memo())
    result = {"machine": machine(tools), "opfacade": ours(Target.parse(options.target))}
    records.write(out, result)
    print(markdown(result), flush=True)
    if options.flashinfer:
        result["flashinfer"] = flashinfer(options.flashinfer, tools.home)
        result["machine"]["load_after"] = os.getloadavg()[0]
        records.write(out, result)
        print(markdown(result))


if __name__ == "__main__":
    main()
