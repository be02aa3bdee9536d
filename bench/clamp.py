"""The cost of index safety: `python -m bench.clamp [--out FILE]`.

Times each kernel with and without its clamps of page ids, lengths and indptr and its dropped writes; the two alternate in one
run.

Prints microseconds of both and the ratio of medians, per shape; the last line is the worst. If all ratios are below 1.01,
SAFE_PAGES in opfacade/backends/cuda/support.py can be True. With --dry it only selects both kernels of each problem, for sm_90a
and without a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator

import torch

from bench import records
from bench.attention import CUDA, DECODE, PREFILL, machine, posed
from opfacade import Plan, Target, plan
from opfacade.backends.cuda import support
from opfacade.core.descriptor import forget_specializations
from opfacade.plans.attention import BatchRaggedPrefillDescriptor, PagedKvCacheDescriptor
from opfacade.plans.kv_cache import PagedKvAppendDescriptor
from opfacade.plans.mla import BatchMlaDecodeDescriptor, PagedLatentCacheDescriptor
from opfacade.testing import inputs, numerics
from opfacade.testing.timing import time_gpu

ROUNDS = 5


def append_problem(rows: int):
    cache = PagedKvCacheDescriptor(num_total_pages=4096, page_size=16, num_kv_heads=8, head_dim=128, dtype="bf16", layout="HND")
    descriptor = PagedKvAppendDescriptor(batch_size=64, total_num_rows=rows, paged_kv=cache)
    lengths = inputs.DrawnLengths(q=[rows // 64] * 64, kv=[rows // 64] * 64)
    return descriptor, lengths


def ragged_problem(batch: int):
    rows = [4096 // batch] * batch
    descriptor = BatchRaggedPrefillDescriptor(
        batch_size=batch, total_num_rows=4096, total_kv_rows=4096, num_qo_heads=32, num_kv_heads=8, head_dim=128, causal=True,
        dtype="bf16",
    )  # fmt: skip
    return descriptor, inputs.DrawnLengths(q=rows, kv=rows)


def latent_problem(batch: int):
    cache = PagedLatentCacheDescriptor(num_total_pages=1024, page_size=64, dtype="bf16")
    descriptor = BatchMlaDecodeDescriptor(batch_size=batch, num_qo_heads=128, paged_kv=cache)
    lengths = inputs.DrawnLengths(kv=[65536 // batch] * batch)
    return descriptor, lengths


def problems() -> Iterator[tuple[str, Callable]]:
    for shape in (*DECODE, *PREFILL):
        yield shape.name, lambda shape=shape: posed(shape)
    for rows in (64, 8192):
        yield f"append {rows} rows", lambda rows=rows: append_problem(rows)
    for batch in (1, 64):
        yield f"ragged {batch}x q{4096 // batch}", lambda batch=batch: ragged_problem(batch)
        yield f"latent decode {batch}x kv{65536 // batch}", lambda batch=batch: latent_problem(batch)


def plan_of(descriptor, safe: bool, target: Target | None = None) -> Plan:
    support.SAFE_PAGES = safe
    plan._selected.clear()
    forget_specializations()
    made = Plan.select(descriptor, CUDA, target)
    flags = made._candidate.jit_spec(made.descriptor, made.target).flags
    assert ("-DOPF_TRUSTED_INDICES" in flags) != safe
    return made


def chosen(name: str, descriptor, lengths) -> dict:
    """The kernels that would be timed: the same kernel with and without clamps."""
    target = Target.parse("sm_90a")
    skus = {safe: plan_of(descriptor, safe, target).sku.id for safe in (False, True)}
    return {"shape": name, "plain": skus[False], "clamped": skus[True]}


def compare(name: str, descriptor, lengths) -> dict:
    args = inputs.make_args(descriptor, seed=1, device="cuda", lengths=lengths)
    plans = {safe: plan_of(descriptor, safe) for safe in (False, True)}
    times: dict[bool, list[float]] = {False: [], True: []}
    for safe, made in plans.items():
        workspace = torch.empty(made.workspace_size, dtype=torch.uint8, device="cuda")
        made.run(args, workspace)
        report = numerics.check(descriptor, args, made.sku, rows=8)
        if not report.worst <= 1:
            raise SystemExit(f"{name}, safe={safe}: wrong result, not timed: {report}")
    for _ in range(ROUNDS):
        for safe, made in plans.items():
            times[safe].append(time_gpu(lambda made=made: made.run(args, workspace), samples=15).median)
    plain, clamped = (statistics.median(times[safe]) for safe in (False, True))
    return {"shape": name, "plain_us": round(plain, 2), "clamped_us": round(clamped, 2), "ratio": round(clamped / plain, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry", action="store_true", help="only say which kernels would be timed; needs no GPU")
    records.add_out(parser, "clamp")
    options = parser.parse_args()
    if options.dry:
        for name, make in problems():
            print(json.dumps(chosen(name, *make())))
        return
    if not torch.cuda.is_available():
        raise SystemExit("needs a GPU; --dry needs none")
    out = records.place(options.out, "clamp")
    rows = []
    for name, make in problems():
        rows.append(compare(name, *make()))
        print(json.dumps(rows[-1]), flush=True)
        torch.cuda.empty_cache()
    worst = max(rows, key=lambda row: row["ratio"])
    print(json.dumps({"worst": worst}))
    records.write(out, {"machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
