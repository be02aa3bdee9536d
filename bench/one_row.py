"""Compares a decode with a prefill of one row per request, on one GPU: `python -m bench.one_row [--out FILE]`.

User-defined variants and masks need a prefill, so this prefill is the cost of a decode with ALiBi. Three contenders for the
same requests, pages and lengths alternate (bench/interleaved.py): the decode, the prefill without a variant, and the prefill
with ALiBi. Each output is checked against its error bound before it is timed. Times are medians in microseconds with a cold L2.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

from bench import interleaved, records
from bench.attention import machine
from bench.decode import Shape, checked, uniform
from bench.interleaved import Contender
from opfacade.plans.attention import BatchPagedPrefillDescriptor
from opfacade.testing import inputs
from opfacade.variant_examples import alibi

SHAPES = (
    uniform(1, 4096),
    uniform(1, 131072),
    uniform(16, 8192),
    uniform(64, 1024),
    uniform(64, 4096),
    uniform(64, 4096, heads=64),
    uniform(64, 4096, kv_heads=32),
    uniform(256, 1024),
    Shape("skew 65536 + 63x1024", (65536, *(1024,) * 63)),
)


def contender(shape: Shape, name: str, descriptor: Any) -> Contender:
    lengths = inputs.DrawnLengths(q=[1] * len(shape.lengths), kv=list(shape.lengths))
    args = inputs.make_args(descriptor, seed=1, device="cuda", lengths=lengths)
    plan, error = checked(shape, descriptor, args)
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
    return Contender({"impl": name, "sku": plan.sku.id, "error_over_bound": error}, lambda: plan.run(args, workspace))


def descriptors(shape: Shape) -> dict[str, Any]:
    """The calls that are timed, by name; the decode is first."""
    decode = shape.descriptor()
    rows = BatchPagedPrefillDescriptor(
        batch_size=len(shape.lengths),
        total_num_rows=len(shape.lengths),
        num_qo_heads=shape.heads,
        causal=True,
        paged_kv=decode.paged_kv,
        max_kv_indices=decode.max_kv_indices,
        max_kv_len=max(shape.lengths),
    )
    biased = rows.model_copy(update={"variant": alibi(shape.heads)})
    return {"decode": decode, "prefill of one row": rows, "prefill of one row, ALiBi": biased}


def row(shape: Shape) -> dict[str, Any]:
    beside = [contender(shape, name, descriptor) for name, descriptor in descriptors(shape).items()]
    times = interleaved.timed(beside, interleaved.DIRTY)
    decode = times[0]["us"]["median"]
    return {"shape": shape.name, "over_decode": [round(time["us"]["median"] / decode, 3) for time in times[1:]], "impls": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    records.add_commit(parser)
    records.add_out(parser, "one_row")
    options = parser.parse_args()
    record: dict[str, Any] = {"machine": machine(), "rows": []}
    record["machine"]["commit"] = records.commit(options.commit)
    for shape in SHAPES:
        record["rows"].append(row(shape))
        found = record["rows"][-1]
        decode = found["impls"][0]["us"]["median"]
        print(json.dumps({"shape": shape.name, "over_decode": found["over_decode"], "decode_us": decode}), flush=True)
        records.write(records.place(options.out, "one_row"), record)


if __name__ == "__main__":
    main()
