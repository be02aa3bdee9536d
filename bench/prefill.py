"""Prefill on one GPU compared with peers, in one run: `python -m bench.prefill [--peers] [--part NAME] [--out FILE] [--picture
FILE]`.

Four parts: the shapes of the table, products of fp8, page sizes against our own dense (ragged) kernel, and causal lengths. A
fifth, heads of latent attention before absorption, runs only if it is named, because FlashInfer compiles for minutes. Data,
checks and timing are those of bench/attention.py. The picture is TFLOP/s against length, with the product of this run as
ceiling.
"""

from __future__ import annotations

import argparse
import re
from importlib.util import find_spec
from pathlib import Path

import torch

from bench import attention, records
from bench.attention import CUDA, PREFILL, Shape
from bench.interleaved import Contender
from opfacade import Plan
from opfacade.testing import numerics

PAGES = tuple(Shape(8192, 1, 8192, 32, 8, 128, page) for page in (1, 8, 16, 32, 64, 128, 256))
LENGTHS = tuple(Shape(n, max(1, 16384 // n), n, 32, 8, 128, 16) for n in (512, 1024, 2048, 4096, 8192, 16384))
UNEVEN = (Shape(8192, 1, 8192, 128, 128, 192, 0, dim_vo=128),)
# Products of fp8.
FP8 = tuple(Shape(q, n, kv, 32, 8, 128, 16, causal, dtype="f8_e4m3") for q, n, kv, causal in (
    (8192, 1, 8192, True), (8192, 2, 8192, False), (2048, 1, 32768, True), (4096, 4, 4096, True)
))  # fmt: skip
PARTS = {"table": tuple(s for s in PREFILL if s.q > 16), "fp8": FP8, "pages": PAGES, "lengths": LENGTHS, "uneven": UNEVEN}


def dense(shape: Shape) -> Contender:
    """The same problem without pages."""
    descriptor, args = attention.dense_problem(shape)
    plan = Plan.select(descriptor, CUDA)
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
    plan.run(args, workspace)
    report = numerics.check(descriptor, args, plan.sku, rows=8)
    if not report.worst <= 1:
        raise SystemExit(f"{shape.name}: wrong result, not timed: {report}")
    row = {"impl": "opfacade (dense)", "sku": plan.sku.id, "error_over_bound": round(report.worst, 3)}
    return Contender(row, lambda: plan.run(args, workspace))


def flashinfer_dense(shape: Shape, backend: str) -> Contender:
    import flashinfer

    descriptor, args = attention.dense_problem(shape)
    scratch = torch.empty(384 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(scratch, "NHD", backend=backend)
    widths = {"head_dim_qk": descriptor.dim, "head_dim_vo": descriptor.dim_vo, "q_data_type": torch.bfloat16}
    wrapper.plan(args.q_indptr, args.kv_indptr, shape.heads, shape.kv_heads, causal=shape.causal, **widths)
    run = lambda: wrapper.run(args.q, args.k, args.v, out=args.o)  # noqa: E731
    run()
    return Contender({"impl": f"flashinfer-{backend} (dense)", "error_over_bound": attention.hold_peer(descriptor, args)}, run)


def fa3_dense(shape: Shape) -> Contender:
    """FlashAttention-3 itself (pip install fa3-fwd), with its own choice of packed heads and splits."""
    import fa3_fwd._C  # noqa: F401

    descriptor, args = attention.dense_problem(shape)
    rows = {"cu_seqlens_q": args.q_indptr, "cu_seqlens_k": args.kv_indptr}
    rows |= {"max_seqlen_q": shape.q, "max_seqlen_k": shape.kv, "softmax_scale": descriptor.scale, "is_causal": shape.causal}
    run = lambda: torch.ops.fa3_fwd.fwd(args.q, args.k, args.v, **rows)  # noqa: E731
    args.o.copy_(run()[0])
    return Contender({"impl": "fa3 (dense)", "error_over_bound": attention.hold_peer(descriptor, args)}, run)


def peers(rows: list, shape: Shape) -> list[Contender]:
    found = attention.attempt(rows, shape, lambda: fa3_dense(shape)) if find_spec("fa3_fwd") else []
    if shape.dtype != "bf16":
        return found  # the other peers get bf16
    flashinfer = attention.flashinfer if shape.page else flashinfer_dense
    for backend in ("fa2", "fa3"):
        found += attention.attempt(rows, shape, lambda b=backend: flashinfer(shape, b))
    if shape.dim_vo is None and shape.q == shape.kv:
        found += attention.attempt(rows, shape, lambda: attention.sdpa(shape))
    return found


def picture(record: dict, path: Path) -> None:
    import matplotlib.pyplot as plt

    lines: dict[str, list[tuple[int, float]]] = {}
    for row in record["lengths"]:
        if "TFLOPs" in row:
            lines.setdefault(row["impl"], []).append((row["length"], row["TFLOPs"]))
    for impl, points in lines.items():
        plt.plot(*zip(*points, strict=True), marker="o", label=impl)
    plt.axhline(record["ceilings"]["bf16_TFLOPs"], linestyle="--", color="gray", label="bf16 product of this run")
    plt.xscale("log", base=2)
    plt.xlabel("length (16384 tokens in all, causal, 32/8 heads of 128, pages of 16)")
    plt.ylabel("TFLOP/s")
    plt.legend()
    plt.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; more than once for more")
    parser.add_argument("--only", default="", help="shapes whose name this regular expression finds")
    parser.add_argument("--commit", help="recorded in place of git's answer")
    records.add_out(parser, "prefill")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    out = records.place(options.out, "prefill", not (options.part or options.only))
    record: dict = {"machine": attention.machine(), "ceilings": attention.ceilings()}
    record["machine"]["commit"] = options.commit or record["machine"]["commit"]
    for part in options.part or [part for part in PARTS if part != "uneven"]:
        shapes = [shape for shape in PARTS[part] if re.search(options.only, shape.name)]
        rows = record.setdefault(part, [])
        for shape in shapes:
            first = len(rows)
            contenders = [attention.ours(shape)] if shape.page else []
            contenders.append(dense(shape))
            if options.peers and part != "pages":
                contenders += peers(rows, shape)
            attention.take_turns(rows, shape, contenders)
            for row in rows[first:]:
                row["length"] = shape.q
            torch.cuda.empty_cache()
            records.write(out, record)
    if options.picture:
        picture(record, options.picture)


if __name__ == "__main__":
    main()
