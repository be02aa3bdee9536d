"""Turns a record of bench/attention.py into one that `opfacade report` reads: `python bench/as_record.py IN OUT`."""

from __future__ import annotations

import json
import re
import sys
from itertools import groupby
from pathlib import Path

from opfacade.plans.attention import BatchPagedDecodeDescriptor, BatchPagedPrefillDescriptor, PagedKvCacheDescriptor
from opfacade.tools.amount import amount

_SHAPE = re.compile(r"(\d+)x q(\d+) kv(\d+) h(\d+)/(\d+) d(\d+) page(\d+) (\w+)")


def problem(text: str):
    batch, q, kv, heads, kv_heads, dim, page = map(int, _SHAPE.match(text).groups()[:7])
    facts = {"num_total_pages": batch * -(-kv // page), "page_size": page, "num_kv_heads": kv_heads, "head_dim": dim}
    fields = {
        "batch_size": batch,
        "num_qo_heads": heads,
        "paged_kv": PagedKvCacheDescriptor(**facts, dtype="bf16", layout="NHD"),
    }
    if q == 1:
        return BatchPagedDecodeDescriptor(**fields)
    return BatchPagedPrefillDescriptor(total_num_rows=batch * q, causal=text.endswith("causal"), **fields)


def converted(record: dict) -> dict:
    rows = []
    for number, (shape, group) in enumerate(groupby(record["rows"], key=lambda row: row["shape"])):
        descriptor = problem(shape)
        least = amount(descriptor)
        facts = {"problem": number, "op": descriptor.op, "bytes": least.bytes, "flops": least.flops, "runs": 0}
        facts |= {"name": f"{descriptor.op.removeprefix('paged_')} {shape}", "descriptor": descriptor.model_dump(mode="json")}
        for row in group:
            rows.append(facts | _row(row, least))
    ceilings = {"TBs": record["ceilings"]["read_TBs"], "TFLOPs": record["ceilings"]["bf16_TFLOPs"]}
    how = "each call cold; our outputs held to their bound first, those of peers not looked at"
    found = {"schema": 1, "machine": record["machine"], "timer": "CUDA events", "how": how, "ceilings": ceilings}
    return found | {"rows": rows, "ok": True}


def _row(row: dict, least) -> dict:
    name = f"opfacade cuda/{row['sku'].split('/')[4].split('@')[0]}" if "sku" in row else row["impl"]
    if "us" not in row:
        return {"impl": name, "declined": row["failed"]}
    us, spread = row["us"]["median"], row["us"]["p90"] - row["us"]["p10"]
    found = {"impl": name, "us": us, "noise": spread / 2 / us, "samples": row["us"]["samples"]}
    found |= {
        "TBs": least.bytes / us * 1e-6,
        "TFLOPs": least.flops / us * 1e-6,
        "error_over_bound": row.get("error_over_bound", 0.0),
    }
    return found | ({"sku": row["sku"]} if "sku" in row else {})


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(converted(json.loads(Path(sys.argv[1]).read_text())), indent=1) + "\n")
