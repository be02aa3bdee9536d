"""Host memory with many kernels loaded: `python bench/host_memory.py [--out FILE]`. Needs no GPU; nvcc and g++.

Resident MB of one process: for a real decode kernel, loaded --kernels times from as many files; for a stub kernel whose driver
launches nothing, loaded as often and called with --calls bundles each until they are recorded; and in total.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import tvm_ffi

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import records  # noqa: E402
from bench.host import CACHE, stub_libraries  # noqa: E402
from opfacade import Plan, Target, jit  # noqa: E402
from opfacade.backends.cuda.host.direct import Direct, KernelCall  # noqa: E402
from opfacade.plans.attention import BatchPagedDecodeDescriptor  # noqa: E402
from opfacade.testing import inputs  # noqa: E402

DECODE = BatchPagedDecodeDescriptor(batch_size=16, num_qo_heads=32, paged_kv=CACHE)


def resident_mb() -> float:
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return round(int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024, 1)


def copies(library: Path, place: Path, count: int) -> list[object]:
    """Loads copies of the library from separate files, which the loader treats as different libraries."""
    paths = [Path(shutil.copy(library, place / f"{i}-{library.name}")) for i in range(count)]
    return [tvm_ffi.load_module(str(path)) for path in paths]


def real_kernels(place: Path, count: int) -> dict[str, float]:
    plan = Plan.select(DECODE, target=Target.parse("sm_90a"))
    library = jit.build(plan.jit_spec)
    before = resident_mb()
    kept = copies(library, place, count)
    return {"loaded_MB": round(resident_mb() - before, 1), "library_KB": round(library.stat().st_size / 1024), "of": len(kept)}


def called_kernels(place: Path, count: int, calls: int) -> dict[str, float]:
    driver, _, host = stub_libraries(place)
    library = next(path for path in (place / "cache").glob("v1/obj/*/*/kernel-*.so") if (path.parent / "quick.cc").exists())
    first = inputs.make_args(DECODE, seed=1, lengths=inputs.DrawnLengths(kv=[40] * 16))
    queries = torch.empty(calls, *first.q.shape, dtype=first.q.dtype).fill_(0)
    bundles = [replace(first, q=q) for q in queries]
    kernels = copies(library, place, count)
    paths = []
    for kernel in kernels:
        paths.append(direct := Direct(host, KernelCall(kernel.run, (2, 0.1, 0.0, -1, 264, 400, 1), False, 0, 1), DECODE))
        direct.learn(first)
    for args in bundles:
        assert paths[0].paths.fast(args, None, False)
    before, launches = resident_mb(), driver.launches
    for direct in paths:
        for args in 3 * bundles:  # called twice to be recorded and once to be replayed, as in a plan
            assert not direct.paths.replay(id(args), id(None)) or direct.paths.fast(args, None, True)
    found = {"called_MB": round(resident_mb() - before, 1), "calls_each": calls, "launches": driver.launches - launches}
    return {**found, "cached_launches": host.cached_launches(), "cached_MB": round(host.cached_bytes() / 2**20, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    records.add_commit(parser)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kernels", type=int, default=100)
    parser.add_argument("--calls", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as other:
        loaded = real_kernels(Path(place), options.kernels)
        called = called_kernels(Path(other), options.kernels, options.calls)
        whole = resident_mb()
    machine = {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "commit": records.commit(options.commit),
    }
    record = {"machine": machine, "kernels": options.kernels, "process_MB": whole, "real": loaded, "called": called}
    print(json.dumps(record, indent=1))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
