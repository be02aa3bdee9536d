"""Cost of a kernel: cold build of every example for one architecture, and a load in a new process, digest included.

python -m bench.cache [--arch sm_90a] [--out FILE.json]: adds `cold_builds` and `warm_load` to the file.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from bench import records

LOAD = """
import sys, time
import torch, tvm_ffi, jinja2, ninja
from opfacade import Plan, Preference, Target, jit
from opfacade.select.registry import examples
plan = Plan.select(examples()[int(sys.argv[1])], Preference(backend="cuda"), target=Target.parse(sys.argv[2]))
spec = plan._candidate.jit_spec(plan.descriptor, plan.target)
started = time.perf_counter()
jit.load(spec, allow_build=False)
print(1000 * (time.perf_counter() - started))
"""


def cold(arch):
    from opfacade import Plan, Preference, Target, explain, jit
    from opfacade.select.registry import examples

    rows, seen = [], set()
    cuda, target = Preference(backend="cuda"), Target.parse(arch)
    for number, example in enumerate(examples()):
        if explain(example, cuda, target).chosen is None:
            continue  # only the reference supports it
        plan = Plan.select(example, cuda, target)
        spec = plan._candidate.jit_spec(plan.descriptor, plan.target)
        if spec in seen:
            continue
        seen.add(spec)
        jit.key(spec)  # digests of the compilers are computed once per machine, not once per build
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        jit.build(spec)
        wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        rows.append({"example": number, "op": example.op, "wall_seconds": round(wall, 2), "cpu_seconds": round(cpu, 2)})
        print(rows[-1], flush=True)
    return rows


def warm(rows, arch, count):
    def once(row):
        words = [sys.executable, "-c", LOAD, str(row["example"]), arch]
        return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)

    found = [once(rows[n % len(rows)]) for n in range(count)]
    return {"processes": count, "median_ms": round(statistics.median(found), 2), "max_ms": round(max(found), 2)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="sm_90a")
    records.add_out(parser, "cache")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ["OPFACADE_CACHE_DIR"] = place
        rows = cold(given.arch)
        loads = warm(rows, given.arch, 10)
    print(loads, "load at start:", os.getloadavg())
    out = records.place(given.out, "cache")
    if out:
        known = json.loads(out.read_text()) if out.exists() else {"figures": {}}
        known["figures"] |= {"cold_builds": {"arch": given.arch, "builds": rows}, "warm_load": loads}
        out.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
