"""Products with low-bit weight codes, compared with cuBLAS and with our kernel for 16-bit weights, on one GPU: `python -m
bench.codes`.

Microseconds, L2 cold, alternately in one run. A row states the lower bound by bytes, 1.8 us + bytes / (0.97 * copy), with the
rate of a copy in this run. Our outputs are checked against their error bound before they are timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from bench import interleaved, records
from bench.matmul import copy_rate
from opfacade import Plan, Preference
from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor, Weight
from opfacade.testing import inputs, numerics
from opfacade.tools.machine import machine

LAYERS = {
    "8B o": (4096, 4096), "8B down": (4096, 14336), "70B o": (8192, 8192), "70B down": (8192, 28672),
    "gpt-oss qkv": (5120, 2880), "gpt-oss o": (2880, 4096),
}  # fmt: skip
ROWS = (1, 16, 64, 128, 512, 1024, 4096, 8192)
FORMATS = {
    "uint4 g128, rounded": Weight(dtype="uint4", group=128, zero="int", dequantise="rounded"),
    "int4 g32, rounded": Weight(dtype="int4", group=32, dequantise="rounded"),
    "int4 g128, exact": Weight(dtype="int4", group=128),
    "int4 g128, group_sum": Weight(dtype="int4", group=128, dequantise="group_sum"),
    "mxfp4": Weight(dtype="e2m1", group=32, scale_dtype="f8_e8m0"),
    "nvfp4": Weight(dtype="e2m1", group=16, scale_dtype="f8_e4m3", global_scale=True),
    "e4m3": Weight(dtype="f8_e4m3", scale_dtype="f32"),
    "activation order": Weight(dtype="uint4", num_groups=32, zero="int", dequantise="rounded"),
}
SECOND = ("8B o", "gpt-oss qkv")  # layers for all formats except the first
DEVICE = "cuda"
CHECKED = 2  # rows that are compared with fp64


@dataclass(frozen=True)
class Problem:
    layer: str
    format: str
    rows: int

    @property
    def descriptor(self) -> MatmulDescriptor:
        n, k = LAYERS[self.layer]
        return MatmulDescriptor(total_num_rows=self.rows, n=n, k=k, dtype="bf16", weight_format=FORMATS[self.format])

    @property
    def name(self) -> str:
        n, k = LAYERS[self.layer]
        return f"{self.layer}, {self.format}: {self.rows} x {n} x {k}"


def problems() -> Iterator[Problem]:
    first, *others = FORMATS
    for layer in LAYERS:
        yield from (Problem(layer, first, rows) for rows in ROWS)
    for name in others:
        yield from (Problem(layer, name, rows) for layer in SECOND for rows in ROWS)


def bytes_of(args: MatmulArgs) -> int:
    """The bytes of all operands, each counted once."""
    tensors = (getattr(args, name) for name in ("x", "weight", "weight_scale", "weight_zero", "weight_groups", "out"))
    return sum(one.numel() * one.itemsize for one in tensors if one is not None)


def plan_of(descriptor: MatmulDescriptor) -> Plan[Any]:
    return Plan.select(descriptor, Preference(backend="cuda"))


def wide(descriptor: MatmulDescriptor) -> MatmulDescriptor:
    """The same product with a 16-bit weight."""
    return descriptor.model_copy(update={"weight_format": None}).revalidated()


def measured(problem: Problem, copy: float) -> dict[str, Any]:
    d = problem.descriptor
    plan, bf16 = plan_of(d), plan_of(wide(d))
    args = inputs.make_args(d, 3, DEVICE)
    plan.run(args)
    report = numerics.check(d, args, plan.sku, rows=min(CHECKED, d.total_num_rows))
    if not report.worst <= 1:
        raise SystemExit(f"{problem.name}: wrong result, not timed: {report}")
    weight = torch.randn(d.n, d.k, device=DEVICE, dtype=torch.float32).to(torch.bfloat16)
    plain = MatmulArgs(x=args.x, weight=weight, out=torch.empty_like(args.out))
    calls = (lambda: plan.run(args), lambda: bf16.run(plain), lambda: args.x @ weight.T)
    own, ours, peer = interleaved.timed([interleaved.Contender({}, call) for call in calls], interleaved.DIRTY)
    floor = 1.8 + bytes_of(args) / (0.97 * copy) * 1e-6
    us, widely, theirs = (one["us"]["median"] for one in (own, ours, peer))
    row: dict[str, Any] = {"layer": problem.layer, "format": problem.format, "rows": d.total_num_rows, "n": d.n, "k": d.k}
    row |= {"sku": plan.sku.id, "worst": report.worst, "us": own["us"], "bf16": ours["us"], "cublas_bf16": peer["us"]}
    row |= {"floor_us": round(floor, 1), "of_floor": round(us / floor, 2)}
    return row | {"of_bf16": round(widely / us, 3), "of_cublas": round(theirs / us, 3)}


def shown(row: dict[str, Any]) -> str:
    sizes = f"{row['layer']}, {row['format']}: {row['rows']} x {row['n']} x {row['k']}"
    times = f"{row['us']['median']:.1f} us, bf16 {row['bf16']['median']:.1f} ({row['of_bf16']})"
    times += f", cuBLAS {row['cublas_bf16']['median']:.1f} ({row['of_cublas']})"
    return f"{sizes}: {times}, floor {row['floor_us']} ({row['of_floor']}); {row['sku'].split('/')[3]}"


def compile_all(which: Sequence[Problem]) -> None:
    wanted = [one for problem in which for one in (problem.descriptor, wide(problem.descriptor))]
    plans = {plan.sku.id: plan for plan in map(plan_of, wanted)}
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda plan: plan.compile(), plans.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds after which no further problem begins")
    parser.add_argument("--only", default="", help="problems whose name has this text")
    records.add_commit(parser)
    records.add_out(parser, "codes")
    options = parser.parse_args()
    until = time.monotonic() + options.budget
    which = [one for one in problems() if options.only in one.name]
    out = records.place(options.out, "codes", not options.only)
    facts = machine("cuda") | {"date": time.strftime("%Y-%m-%d"), "commit": records.commit(options.commit)}
    record: dict[str, Any] = {"machine": facts, "copy_TBs": copy_rate(), "rows": [], "left": []}
    compile_all(which)
    for at, problem in enumerate(which):
        if time.monotonic() > until:
            record["left"] = [one.name for one in which[at:]]
            break
        record["rows"].append(measured(problem, record["copy_TBs"]))
        print(shown(record["rows"][-1]), flush=True)
        torch.cuda.empty_cache()
    print(f"copy {record['copy_TBs']} TB/s; {len(record['left'])} problems left")
    records.write(out, record)


if __name__ == "__main__":
    main()
