"""Cost of batch invariance: `python -m bench.invariance [--out FILE]`. One GPU, one run, medians.

Times each shape with kv_split "auto" (the fastest SKU, whose bits depend on the batch), "off" and fixed chunks (batch
invariant). Outputs are checked against the SKU's error bound before they are timed. The cost is the ratio to the time of
"auto".
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from bench import records
from bench.attention import DECODE, PREFILL, Shape
from opfacade import Plan, Preference
from opfacade.plans.attention import BatchPagedDecodeDescriptor, BatchPagedPrefillDescriptor
from opfacade.testing import inputs, numerics
from opfacade.testing.timing import time_gpu
from opfacade.tools.verify import machine

CUDA = Preference(backend="cuda")
SPLITS: tuple[str | int, ...] = ("auto", "off", 512, 1024, 2048)
LIMIT = 32 * 2**30  # a split that needs more bytes of workspace is not timed


def descriptor_of(shape: Shape, split: str | int) -> Any:
    heads = {"batch_size": shape.batch, "num_qo_heads": shape.heads, "paged_kv": shape.cache, "kv_split": split}
    if shape.q == 1:
        return BatchPagedDecodeDescriptor.model_validate(heads)
    return BatchPagedPrefillDescriptor.model_validate(heads | {"total_num_rows": shape.q * shape.batch, "causal": shape.causal})


def measured(shape: Shape, split: str | int) -> dict[str, Any]:
    descriptor = descriptor_of(shape, split)
    plan = Plan.select(descriptor, CUDA)
    if plan.workspace_size > LIMIT:
        return {"split": split, "skipped": f"{plan.workspace_size} bytes of workspace"}
    lengths = inputs.DrawnLengths(q=[shape.q] * shape.batch, kv=[shape.kv] * shape.batch)
    args = inputs.make_args(descriptor, seed=1, device="cuda", lengths=lengths)
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
    plan.run(args, workspace)
    report = numerics.check(descriptor, args, plan.sku, rows=8)
    if not report.worst <= 1:
        raise SystemExit(f"{shape.name} kv_split={split}: {report.worst:.3g} of the bound at {report.where}")
    timing = time_gpu(lambda: plan.run(args, workspace))
    promise = plan.precision_guarantee.batch_invariant
    facts = {"split": split, "sku": plan.sku.id, "batch_invariant": promise, "workspace_bytes": plan.workspace_size}
    return facts | {"microseconds": timing.as_dict()}


def compared(shape: Shape) -> dict[str, Any]:
    rows = [measured(shape, split) for split in SPLITS]
    timed = [row for row in rows if "microseconds" in row]
    auto = timed[0]["microseconds"]["median"]
    for row in timed:
        row["over_auto"] = row["microseconds"]["median"] / auto
    best = min((row for row in timed if row["batch_invariant"] == "composition"), key=lambda row: row["over_auto"])
    print(f"{shape.name}: auto {auto:.1f} us; best invariant kv_split={best['split']} x{best['over_auto']:.3f}", flush=True)
    return {"shape": shape.name, "splits": rows, "best_invariant": best["split"], "cost": best["over_auto"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    records.add_out(parser, "invariance")
    parser.add_argument("--commit", help="recorded")
    given = parser.parse_args()
    started = time.time()
    shapes = [compared(shape) for shape in (*DECODE, *PREFILL[:4], *PREFILL[-1:])]
    facts = machine("cuda") | {"date": time.strftime("%Y-%m-%d"), "commit": given.commit}
    record = {"machine": facts, "seconds": round(time.time() - started), "shapes": shapes}
    records.write(records.place(given.out, "invariance"), record)


if __name__ == "__main__":
    main()
