"""Latent decode (MLA, 512 + 64) on one GPU compared with FlashInfer, in one run: `python -m bench.mla [--peers] [--out FILE]`.

Random normal bf16 data, shuffled pages, L2 cold in the two ways of bench/decode.py. Every output, also a peer's, is checked
against the SKU's error bound before it is timed. A row contains the median with p10 and p90, in microseconds, TFLOP/s (from 2 *
heads * keys * (576 + 512)), bytes of latents per second, and both rates as fractions of a library's product and reduction in
this run.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from bench import interleaved, records
from bench.attention import machine
from bench.decode import ceilings, shown
from bench.interleaved import Contender
from opfacade import Plan, Preference
from opfacade.plans.mla import BatchMlaDecodeArgs, BatchMlaDecodeDescriptor, PagedLatentCacheDescriptor
from opfacade.testing import inputs, numerics
from opfacade.testing.timing import time_gpu

CUDA = Preference(backend="cuda")
LATENT, ROPE = 512, 64
Call = Callable[[], object]


@dataclass(frozen=True)
class Shape:
    batch: int
    kv: int  # tokens of each request, or of the longest one
    heads: int
    page: int = 64
    split: str | int = "auto"
    shortest: int | None = None  # lengths from this to kv, evenly spaced and shuffled
    q: int = 1  # rows of each request, causal

    @property
    def name(self) -> str:
        split = "" if self.split == "auto" else f" split{self.split}"
        kv = self.kv if self.shortest is None else f"{self.shortest}-{self.kv}"
        rows = "" if self.q == 1 else f" q{self.q}"
        return f"b{self.batch} kv{kv} h{self.heads} page{self.page}{rows}{split}"

    @property
    def lengths(self) -> list[int]:
        low = self.kv if self.shortest is None else self.shortest
        spread = [low + (self.kv - low) * i // max(1, self.batch - 1) for i in range(self.batch)]
        return random.Random(1).sample(spread, len(spread))

    @property
    def bytes(self) -> float:
        return 2.0 * sum(self.lengths) * (LATENT + ROPE)

    @property
    def flops(self) -> float:
        seen = sum(length - (self.q - 1) / 2 for length in self.lengths) * self.q
        return 2.0 * seen * self.heads * (LATENT + ROPE + LATENT)

    def descriptor(self) -> BatchMlaDecodeDescriptor:
        pages = sum(-(-length // self.page) for length in self.lengths)
        cache = PagedLatentCacheDescriptor(num_total_pages=pages, page_size=self.page, dtype="bf16")
        return BatchMlaDecodeDescriptor(
            batch_size=self.batch,
            num_qo_heads=self.heads,
            q_len=self.q,
            paged_kv=cache,
            kv_split=self.split,
            return_lse=False,
        )


SHAPES = (
    *(Shape(128, 4096, 128, page) for page in (1, 16, 64)),
    Shape(32, 8192, 128),
    Shape(64, 4096, 128),
    Shape(1, 32768, 128),
    Shape(1, 65536, 128),
    Shape(64, 2048, 64),
    *(Shape(64, 8192, 16, page) for page in (1, 16, 64)),
    Shape(128, 4096, 16),
    *(Shape(128, 4096, heads, page=16, shortest=32) for heads in (16, 128)),
    Shape(128, 4096, 128, split="off"),
    Shape(128, 4096, 128, split=2048),
    *(Shape(64, 8192, 16, q=rows) for rows in (2, 4, 8)),
    Shape(64, 4096, 128, q=2),
    Shape(1, 32768, 128, q=4),
)


def check(shape: Shape, descriptor: BatchMlaDecodeDescriptor, args: BatchMlaDecodeArgs, sku: Any) -> float:
    report = numerics.check(descriptor, args, sku, rows=256)  # with 128 heads, 256 rows are two requests
    if not report.worst <= 1:
        raise SystemExit(f"{shape.name}: wrong result, not timed: {report}")
    return round(report.worst, 3)


def flashinfer_call(shape: Shape, args: BatchMlaDecodeArgs, scale: float, backend: str) -> Call:
    import flashinfer

    scratch = torch.empty(384 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(scratch, backend=backend)
    rows = torch.arange(shape.batch + 1, dtype=torch.int32, device="cuda") * shape.q
    lengths = torch.tensor(shape.lengths, dtype=torch.int32, device="cuda")
    indices = args.kv_indices[: int(args.kv_indptr[-1])].contiguous()
    table = (rows, args.kv_indptr, indices, lengths)
    wrapper.plan(*table, shape.heads, LATENT, ROPE, shape.page, shape.q > 1, scale, torch.bfloat16, torch.bfloat16)
    return lambda: wrapper.run(args.q_nope, args.q_pe, args.ckv, args.kpe, out=args.o)


def rows(shape: Shape, peers: bool) -> Iterator[dict[str, Any]]:
    descriptor = shape.descriptor()
    args = inputs.make_args(descriptor, 1, "cuda", inputs.DrawnLengths(kv=shape.lengths))
    plan = Plan.select(descriptor, CUDA)
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")

    plan.run(args, workspace)
    row = {"impl": "opfacade", "sku": plan.sku.id, "error_over_bound": check(shape, descriptor, args, plan.sku)}
    found = [Contender(row, lambda: plan.run(args, workspace), host=100)]
    for backend in ("fa3", "fa2") if peers else ():
        name = f"flashinfer-{backend}"
        try:
            own = replace(args, o=torch.full_like(args.o, float("nan")))
            call = flashinfer_call(shape, own, descriptor.scale, backend)
            call()
            error = check(shape, descriptor, own, plan.sku)
            found.append(Contender({"impl": name, "error_over_bound": error}, call))
        except Exception as failure:  # a peer that does not support a shape is recorded with its reason
            yield {"impl": name, "failed": f"{type(failure).__name__}: {failure}"[:200]}
    yield from interleaved.timed(found, interleaved.BOTH)


def product_ceiling() -> float:
    """TFLOP/s of a library's product of 8192 x 8192 bf16 matrices."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return 2.0 * 8192**3 / time_gpu(lambda: a @ a, samples=20).median * 1e-6


def with_rates(row: dict[str, Any], shape: Shape, ceiling: dict[str, float]) -> dict[str, Any]:
    if "clean_us" not in row:
        return {"shape": shape.name, **row}
    us = row["clean_us"]["median"]
    rates = {"TFLOPs": shape.flops / us * 1e-6, "TBs": shape.bytes / us * 1e-6}
    found = {"shape": shape.name, **row, **{name: round(rate, 3) for name, rate in rates.items()}}
    found["of_product"] = round(rates["TFLOPs"] / ceiling["bf16_TFLOPs"], 3)
    found["of_reading"] = round(rates["TBs"] / ceiling["read_4GB_TBs"], 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--only", default="", help="shapes whose name this regular expression finds")
    parser.add_argument("--commit", help="recorded in place of git's answer")
    records.add_out(parser, "mla")
    options = parser.parse_args()
    out = records.place(options.out, "mla", not options.only)
    found = ceilings() | {"bf16_TFLOPs": round(product_ceiling(), 1)}
    record: dict[str, Any] = {"machine": machine(), "ceilings": found, "rows": []}
    record["machine"]["commit"] = options.commit or record["machine"]["commit"]
    print(json.dumps(found), flush=True)
    for shape in (shape for shape in SHAPES if re.search(options.only, shape.name)):
        for row in rows(shape, options.peers):
            record["rows"].append(with_rates(row, shape, found))
            print(shown(record["rows"][-1]), flush=True)
            records.write(out, record)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
