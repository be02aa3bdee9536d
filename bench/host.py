"""Host time of the facade, in microseconds: `python -m bench.host [--out FILE] [--commit REV]`. Needs no GPU.

import: seconds of `import opfacade` in a fresh process. select_new, select_again: a descriptor never seen, and one seen.
new_size: of each op, [to describe, to select] another size of its first example: CPU time of the fastest of 200 calls, each
with a size that was never seen. `--new-size` measures these alone, prints each op with its limit for a selection, and exits
with 1 where an op takes longer. The limits are for a machine without other load.
check_same, check_full: can_implement of the reference for the very same bundle, and for another. count: telemetry of a run.
run_same, run_like: a whole run of the CUDA launcher with the very same bundle, and with two alternating ones, with a stub
driver (csrc/host, csrc/common and all Python are real). run_new: with new tensors each time. fast, fast_check: the fast path
without replay, and its check alone. Needs nvcc and g++, or is left out.
kinds: run_same with one operand of each kind of tensor that models hold, under no_grad.
record, sink, sample_*: additional time of a run while it is recorded, sent to a sink, or timed.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import timeit
from dataclasses import replace
from pathlib import Path

import torch

from bench import records
from opfacade import Plan, Target, jit, telemetry
from opfacade.backends.cuda.host.direct import Direct, KernelCall
from opfacade.errors import CompileError, ToolchainError
from opfacade.plans.attention import BatchPagedDecodeDescriptor, PagedKvCacheDescriptor
from opfacade.select import registry
from opfacade.telemetry import latency as telemetry_latency
from opfacade.testing import inputs
from opfacade.tools.recorder import Recorder

ROOT = Path(__file__).resolve().parent.parent

CACHE = PagedKvCacheDescriptor(num_total_pages=64, page_size=16, num_kv_heads=8, head_dim=128, dtype="bf16", layout="HND")


def microseconds(call, number: int = 2000) -> float:
    """The smallest of seven means, as an estimate of the cost without other load."""
    return round(min(timeit.repeat(call, number=number, repeat=7)) / number * 1e6, 3)


def import_seconds() -> float:
    code = "import time; t = time.perf_counter(); import opfacade; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(5)]
    return round(min(map(float, runs)), 4)


def telemetry_on(plan, args) -> dict[str, float]:
    """Additional time of a run: while recorded, with a sink, with 1 in 100 or all of them timed."""
    found, sink = {}, [].append
    ways = {"record": lambda: telemetry.attach(Recorder()), "sink": lambda: telemetry.subscribe(lambda event: None)}
    for name, on in ways.items():
        off = on()
        found[name] = microseconds(lambda: telemetry.ran(plan, args))
        off()
    bare = microseconds(lambda: sink(None))
    for name, share in (("sample_1_in_100", "0.01"), ("sample_all", "1")):
        os.environ["OPFACADE_TELEMETRY_SAMPLE"] = share
        timed = telemetry_latency.wrap(lambda args, workspace: sink(None), plan.sku)
        found[name] = round(microseconds(lambda timed=timed: timed(args, None)) - bare, 3)
    del os.environ["OPFACADE_TELEMETRY_SAMPLE"]
    return found


def stub_libraries(place: Path):
    """Builds, below `place`, a stub driver that launches nothing, a kernel library that calls it, and the host library."""
    sys.path.insert(0, str(ROOT))
    from tests.jit.fake_driver import FakeDriver

    root = place / "root"
    shutil.copytree(ROOT / "tests/jit/templates", root)
    for common in ("csrc/common", "csrc/host", "kernels/common"):
        shutil.copytree(ROOT / common, root / common)
    os.environ |= {"OPFACADE_SOURCE_ROOT": str(root), "OPFACADE_CACHE_DIR": str(place / "cache")}
    try:
        driver = FakeDriver(place)
        return driver, driver.binding(), jit.load(jit.HOST)
    finally:
        del os.environ["OPFACADE_SOURCE_ROOT"], os.environ["OPFACADE_CACHE_DIR"]


def stub_plan(descriptor, pair):
    """A plan whose kernel is launched by a stub driver on host tensors; also the driver and the paths.

    Raises CompileError or ToolchainError without a compiler.
    """
    with tempfile.TemporaryDirectory() as place:
        driver, module, host = stub_libraries(Path(place))
    plan = Plan.select(descriptor, target=Target.cpu())
    # As in the launcher of a CUDA plan, but on the host; seven scalars, as for decode. The last one is the number of launches.
    kernel = KernelCall(module.run, (2, 0.1, 0.0, -1, 264, 400, 1), False, 0, device_type=1)
    direct = Direct(host, kernel, descriptor)
    direct.learn(pair[0])
    for name, path in direct.paths._asdict().items():
        object.__setattr__(plan, f"_{name}", path)
    for args in pair:
        assert direct.paths.fast(args, None, True)
    return driver, plan, direct


def stub_runs(descriptor, pair) -> dict[str, float | dict[str, float]]:
    """Times runs on host tensors with a stub driver."""
    try:
        driver, plan, direct = stub_plan(descriptor, pair)
    except (CompileError, ToolchainError) as error:
        print(error, file=sys.stderr)
        return {}
    queries, outputs = (list(torch.empty(n, *pair[0].q.shape, dtype=pair[0].q.dtype)) for n in (64, 32))
    many = [replace(pair[0], q=q, o=o) for q, o in itertools.product(queries, outputs)]
    for args in many:
        direct.paths.fast(args, None, False)
    like, new = itertools.cycle(pair), itertools.cycle(many)
    before = driver.launches
    found = {
        "run_same": microseconds(lambda: plan.run(pair[0])),
        "run_like": microseconds(lambda: plan.run(next(like))),
        "run_new": microseconds(lambda: plan.run(next(new))),
        "fast": microseconds(lambda: direct.paths.fast(pair[0], None, True)),
        "fast_check": microseconds(lambda: plan.can_implement(next(like))),
    }
    assert driver.launches == before + 4 * 7 * 2000
    return found | {"kinds": of_kinds(plan, direct, pair[0])}


def of_kinds(plan, direct, args) -> dict[str, float]:
    """Times a run with each kind of tensor, after the plan learned it."""
    with torch.inference_mode():
        inferred = args.q.clone()
    kinds = {
        "tensor": args.q.clone(),
        "frozen_parameter": torch.nn.Parameter(args.q.clone(), requires_grad=False),
        "trained_parameter": torch.nn.Parameter(args.q.clone()),
        "buffer": torch.nn.Buffer(args.q.clone()),
        "inference": inferred,
    }
    found = {}
    with torch.no_grad():
        for name, q in kinds.items():
            same = replace(args, q=q)
            direct.learn(same)
            assert direct.paths.fast(same, None, True), name
            found[name] = microseconds(lambda same=same: plan.run(same))
    return found


_GROWING = ("total_num_rows", "batch_size", "shape", "width", "n")  # the first of these fields that an op has is its size


NEW_SIZE_LIMIT = 40.0  # microseconds of a selection
NEW_SIZE_LIMITS = dict.fromkeys(("paged_decode", "paged_prefill", "ragged_prefill", "mla_decode"), 35.0)  # other limits


def over_limit(found: dict[str, list[float]]) -> list[str]:
    """Prints each op, the slowest selection first. Returns the ops that take longer than their limit."""
    over = []
    for op, (describe, select) in sorted(found.items(), key=lambda one: -one[1][1]):
        limit = NEW_SIZE_LIMITS.get(op, NEW_SIZE_LIMIT)
        over += [op] if select > limit else []
        print(f"{op:18} describe {describe:6.1f}  select {select:6.1f}  limit {limit:.0f}{'  over' if select > limit else ''}")
    return over


def new_sizes(target: Target) -> dict[str, list[float]]:
    """For each op, the times [to create, to select] a descriptor with a new size."""
    first = {one.op: one for one in reversed(registry.examples())}
    return {op: new_size(example, target) for op, example in sorted(first.items())}


def new_size(example, target: Target, many: int = 200) -> list[float]:
    field = next(name for name in _GROWING if name in type(example).model_fields)
    times: list[tuple[int, int]] = []
    gc.disable()
    try:
        for i in range(many):
            fields = dict(example) | {field: _larger(example, field, 4096 + 128 * i)}
            begin = time.thread_time_ns()
            made = type(example)(**fields)
            middle = time.thread_time_ns()
            Plan.select(made, target=target)
            times.append((middle - begin, time.thread_time_ns() - middle))
    finally:
        gc.enable()
    return [round(min(column) / 1e3, 1) for column in zip(*times, strict=True)]


def _larger(example, field: str, size: int):
    return (size, *example.shape[1:]) if field == "shape" else size


def measure() -> dict[str, float | dict[str, float] | dict[str, list[float]]]:
    target = Target.parse("sm_90a")
    sizes = itertools.count(1)

    def decode(batch: int) -> BatchPagedDecodeDescriptor:
        return BatchPagedDecodeDescriptor(batch_size=batch, num_qo_heads=32, paged_kv=CACHE)

    fresh = [decode(next(sizes)) for _ in range(3000)]
    new = iter(fresh)
    seen = fresh[0]
    Plan.select(seen, target=target)
    on_cpu = Plan.select(decode(16), target=Target.cpu())
    a, b = (inputs.make_args(decode(16), seed=s, lengths=inputs.DrawnLengths(kv=[40] * 16)) for s in (1, 2))
    on_cpu.run(a)
    pair = itertools.cycle((a, b))
    return {
        "import_s": import_seconds(),
        "describe": microseconds(lambda: decode(16)),
        "select_new": microseconds(lambda: Plan.select(next(new), target=target), number=300),
        "select_again": microseconds(lambda: Plan.select(seen, target=target)),
        "new_size": new_sizes(target),
        "check_same": microseconds(lambda: on_cpu.can_implement(a)),
        "check_full": microseconds(lambda: on_cpu.can_implement(next(pair))),
        **stub_runs(decode(16), (a, b)),
        "count": microseconds(lambda: (on_cpu._count(), telemetry._watched)),
        **telemetry_on(on_cpu, a),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    records.add_commit(parser)
    records.add_out(parser, "host")
    parser.add_argument("--new-size", action="store_true", help="measure only new_size")
    options = parser.parse_args(argv)
    name = "new_size" if options.new_size else "host"
    out = records.place(options.out, name)
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": records.commit(options.commit),
    }
    found = {"new_size": new_sizes(Target.parse("sm_90a"))} if options.new_size else measure()
    record = {"machine": machine, "us": found}
    if not options.new_size:
        print(json.dumps(record, indent=1))
    records.write(out, record)
    if options.new_size and (over := over_limit(record["us"]["new_size"])):
        sys.exit(f"over the limit: {', '.join(over)}")


if __name__ == "__main__":
    main()
