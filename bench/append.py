"""Times writes to the paged cache and merges of states on one GPU: `python -m bench.append [--out FILE]`.

Large problems: microseconds, L2 cold, and bytes read and written per second as a fraction of the rate of a tensor copy in this
run. Small ones: microseconds of one launch in a CUDA graph with many launches. Every output is checked against its error bound
before it is timed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench import records
from bench.attention import machine
from bench.decode import IN_A_GRAPH, shown, time_graph, timings
from opfacade import Plan, Preference
from opfacade.plans._attention.paging import PagedKvCacheDescriptor
from opfacade.plans.cascade import MergeStatesDescriptor
from opfacade.plans.kv_cache import PagedKvAppendDescriptor
from opfacade.testing import inputs, numerics
from opfacade.testing.timing import time_gpu, time_host

CUDA = Preference(backend="cuda")
LARGE, SMALL = 65536, 64  # new rows, of 8 heads of 128
WAYS: dict[str, dict[str, Any]] = {
    "copied": {},
    "rope": {"rope": "half"},
    "to fp8": {"new_dtype": "bf16", "kv_scale": "tensor"},
    "rope, to fp8": {"new_dtype": "bf16", "kv_scale": "tensor", "rope": "half"},
}


def append(rows: int, way: dict[str, Any], batch: int = 16, page: int = 16) -> PagedKvAppendDescriptor:
    dtype = "f8_e4m3" if "new_dtype" in way else "bf16"
    sizes = {"num_total_pages": rows // page + batch, "page_size": page, "num_kv_heads": 8, "head_dim": 128}
    cache = PagedKvCacheDescriptor(**sizes, dtype=dtype, layout="NHD")
    return PagedKvAppendDescriptor(batch_size=batch, total_num_rows=rows, paged_kv=cache, **way)


def merge(rows: int, states: int) -> MergeStatesDescriptor:
    return MergeStatesDescriptor(num_states=states, total_num_rows=rows, num_heads=32, head_dim=128, dtype="bf16")


def problems() -> Iterator[tuple[str, Any]]:
    for name, way in WAYS.items():
        yield f"append {LARGE} rows, {name}", append(LARGE, way)
        yield f"append {SMALL} rows, {name}", append(SMALL, way)
    for states in (2, 8):
        yield f"merge {states} states of 16384 rows", merge(16384, states)
        yield f"merge {states} states of 64 rows", merge(64, states)


def args_of(descriptor: Any) -> Any:
    if descriptor.op == "merge_states":
        return inputs.make_args(descriptor, seed=1, device="cuda")
    each = [descriptor.total_num_rows // descriptor.batch_size] * descriptor.batch_size
    return inputs.make_args(descriptor, seed=1, device="cuda", lengths=inputs.DrawnLengths(q=each, kv=each))


def moved(descriptor: Any, args: Any) -> int:
    """Bytes that must be read and written: each new row, state and result once."""
    if descriptor.op == "merge_states":
        # An empty state is not read.
        shown = int((args.states_lse > float("-inf")).sum()) * descriptor.head_dim * args.states_o.element_size()
        return shown + sum(t.numel() * t.element_size() for t in (args.states_lse, args.o, args.lse))
    new = sum(t.numel() for t in (args.k_new, args.v_new))
    return new * (args.k_new.element_size() + args.k_data.element_size())


def checked(name: str, descriptor: Any, args: Any) -> tuple[Plan[Any], float]:
    plan: Plan[Any] = Plan.select(descriptor, CUDA)
    before = numerics.snapshot(descriptor, args)
    plan.run(args)
    report = numerics.check(descriptor, args, plan.sku, before=before)
    if not report.worst <= 1:
        raise SystemExit(f"{name}: wrong result, not timed: {report}")
    return plan, round(report.worst, 3)


def measured(name: str, descriptor: Any, copy_TBs: float) -> dict[str, Any]:
    args = args_of(descriptor)
    plan, error = checked(name, descriptor, args)
    run: Callable[[], object] = lambda: plan.run(args)  # noqa: E731
    row: dict[str, Any] = {"problem": name, "sku": plan.sku.id, "error_over_bound": error}
    if descriptor.total_num_rows == SMALL:
        return row | {"graph_us": time_graph([run] * IN_A_GRAPH), "run_host_us": time_host(run, samples=100).median}
    row |= timings(run)
    rate = moved(descriptor, args) / min(row["dirty_us"]["median"], row["clean_us"]["median"]) * 1e-6
    return row | {"TBs": round(rate, 3), "of_copying": round(rate / copy_TBs, 3)}


def copying() -> float:
    """TB/s, read plus written, of a copy of 2 GB."""
    x = torch.empty(2**30, device="cuda", dtype=torch.bfloat16).normal_()
    y = torch.empty_like(x)
    return 2 * x.numel() * 2 / time_gpu(lambda: y.copy_(x), samples=10).median * 1e-6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="recorded in place of git's answer")
    records.add_out(parser, "append")
    options = parser.parse_args()
    out = records.place(options.out, "append")
    record: dict[str, Any] = {"machine": machine(), "ceilings": {"copy_TBs": round(copying(), 3)}, "rows": []}
    record["machine"]["commit"] = options.commit or record["machine"]["commit"]
    print(json.dumps(record["ceilings"]), flush=True)
    for name, descriptor in problems():
        record["rows"].append(measured(name, descriptor, record["ceilings"]["copy_TBs"]))
        print(shown(record["rows"][-1]), flush=True)
        torch.cuda.empty_cache()
        records.write(out, record)


if __name__ == "__main__":
    main()
