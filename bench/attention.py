"""Attention on one GPU and its peers, in one run: `python -m bench.attention [--peers] [--out FILE]`.

Random normal data, shuffled pages, L2 flushed; outputs are first checked against the SKU's error bound, and a wrong one is not
timed. Ours and peers alternate (bench/interleaved.py). Rates: TFLOP/s for prefill (masked products not counted), TB/s for
decode (K and V once). Ceilings are measured here too. Peers: FlashInfer (fa2, fa3) if it is installed, torch SDPA with cuDNN
for dense shapes.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from dataclasses import dataclass, replace

import torch

from bench import interleaved, records
from bench.interleaved import Contender
from opfacade import Plan, Preference
from opfacade.plans.attention import (
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillDescriptor,
    PagedKvCacheDescriptor,
)
from opfacade.testing import inputs, numerics
from opfacade.testing.timing import time_gpu, time_host

CUDA = Preference(backend="cuda")


@dataclass(frozen=True)
class Shape:
    q: int
    batch: int
    kv: int
    heads: int
    kv_heads: int
    dim: int
    page: int  # 0: plain rows
    causal: bool = True
    dim_vo: int | None = None
    dtype: str = "bf16"  # of q, K and V

    @property
    def name(self) -> str:
        mask, memory = "causal" if self.causal else "full", f"page{self.page}" if self.page else "rows"
        dims = f"d{self.dim}" if self.dim_vo is None else f"d{self.dim}/{self.dim_vo}"
        dtype = "" if self.dtype == "bf16" else f" {self.dtype}"
        return f"{self.batch}x q{self.q} kv{self.kv} h{self.heads}/{self.kv_heads} {dims} {memory} {mask}{dtype}"

    @property
    def dims(self) -> int:
        """The number of elements of a key and its value together."""
        return self.dim + (self.dim if self.dim_vo is None else self.dim_vo)

    @property
    def flops(self) -> float:
        pairs = self.q * self.kv - (self.q * (self.q - 1) // 2 if self.causal else 0)
        return 2.0 * self.batch * pairs * self.heads * self.dims

    @property
    def bytes(self) -> float:
        return (1.0 if self.dtype == "f8_e4m3" else 2.0) * self.batch * self.kv * self.kv_heads * self.dims

    @property
    def cache(self) -> PagedKvCacheDescriptor:
        pages = self.batch * -(-self.kv // self.page)
        return PagedKvCacheDescriptor(
            num_total_pages=pages,
            page_size=self.page,
            num_kv_heads=self.kv_heads,
            head_dim=self.dim,
            dtype=self.dtype,
            layout="NHD",
        )


PREFILL = (
    Shape(8192, 1, 8192, 32, 8, 128, 16),
    Shape(4096, 4, 4096, 32, 8, 128, 16),
    Shape(1024, 16, 1024, 32, 8, 128, 16),
    Shape(2048, 1, 32768, 32, 8, 128, 16),
    Shape(8192, 2, 8192, 32, 8, 128, 16, causal=False),
    Shape(8192, 1, 8192, 32, 8, 64, 16),
    Shape(8192, 1, 8192, 16, 8, 256, 16),
    Shape(16, 4, 16384, 32, 8, 128, 16),
)
DECODE = (
    Shape(1, 1, 131072, 32, 8, 128, 16),
    Shape(1, 16, 8192, 32, 8, 128, 16),
    Shape(1, 64, 4096, 32, 8, 128, 1),
    Shape(1, 64, 4096, 32, 8, 128, 16),
    Shape(1, 64, 4096, 32, 8, 128, 64),
    Shape(1, 256, 1024, 32, 8, 128, 16),
    Shape(1, 64, 4096, 32, 32, 128, 16),
    Shape(1, 1, 512, 32, 8, 128, 16),
)


def posed(shape: Shape):
    """The descriptor and the lengths of its requests."""
    if shape.q == 1:
        descriptor = BatchPagedDecodeDescriptor(batch_size=shape.batch, num_qo_heads=shape.heads, paged_kv=shape.cache)
    else:
        descriptor = BatchPagedPrefillDescriptor(
            batch_size=shape.batch,
            total_num_rows=shape.batch * shape.q,
            num_qo_heads=shape.heads,
            causal=shape.causal,
            paged_kv=shape.cache,
        )
    lengths = inputs.DrawnLengths(q=[shape.q] * shape.batch, kv=[shape.kv] * shape.batch)
    return descriptor, lengths


def problem(shape: Shape):
    descriptor, lengths = posed(shape)
    return descriptor, inputs.make_args(descriptor, seed=1, device="cuda", lengths=lengths)


def ours(shape: Shape) -> Contender:
    """Our times: the error is checked first; then the first use, and the host time of a repeated select and of a check."""
    descriptor, args = problem(shape)
    started = time.perf_counter()
    plan = Plan.select(descriptor, CUDA)
    plan.compile()
    first = time.perf_counter() - started
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
    plan.run(args, workspace)
    report = numerics.check(descriptor, args, plan.sku, rows=8)
    if not report.worst <= 1:
        raise SystemExit(f"{shape.name}: wrong result, not timed: {report}")
    row = {"impl": "opfacade", "sku": plan.sku.id, "error_over_bound": round(report.worst, 3), "first_use_s": round(first, 2)}
    row["select_host_us"] = round(time_host(lambda: Plan.select(descriptor, CUDA)).median, 2)
    row["check_host_us"] = time_host(lambda: plan.can_implement(args)).median
    return Contender(row, lambda: plan.run(args, workspace), host=100)


def flashinfer(shape: Shape, backend: str) -> Contender:
    import flashinfer

    descriptor, args = problem(shape)
    scratch = torch.empty(384 << 20, dtype=torch.uint8, device="cuda")
    common = (args.kv_indptr, args.kv_indices[: args.kv_indptr[-1]].contiguous(), args.last_page_len)
    heads = (shape.heads, shape.kv_heads, shape.dim, shape.page)
    if shape.q == 1:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(scratch, "NHD", use_tensor_cores=True, backend=backend)
        wrapper.plan(*common, *heads, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(scratch, "NHD", backend=backend)
        wrapper.plan(args.q_indptr, *common, *heads, causal=shape.causal, q_data_type=torch.bfloat16)
    run = lambda: wrapper.run(args.q, (args.k_data, args.v_data), out=args.o)  # noqa: E731
    run()
    row = {"impl": f"flashinfer-{backend}", "error_over_bound": hold_peer(descriptor, args)}
    return Contender(row, run, host=50)


def hold_peer(descriptor, args) -> float:
    """A peer's error over the bound of our kernel. Checks only `o`, because a peer's lse has another base or is missing."""
    report = numerics.check(descriptor, replace(args, lse=None), Plan.select(descriptor, CUDA).sku, rows=8)
    if not report.worst <= 1:
        raise ValueError(f"wrong result, not timed: {report}")
    return round(report.worst, 3)


def dense_problem(shape: Shape):
    """The same problem without pages."""
    rows, keys = shape.batch * shape.q, shape.batch * shape.kv
    sizes = {"batch_size": shape.batch, "total_num_rows": rows, "total_kv_rows": keys, "num_qo_heads": shape.heads}
    sizes |= {"num_kv_heads": shape.kv_heads, "head_dim": shape.dim, "head_dim_vo": shape.dim_vo}
    descriptor = BatchRaggedPrefillDescriptor.model_validate({**sizes, "causal": shape.causal, "dtype": shape.dtype})
    lengths = inputs.DrawnLengths(q=[shape.q] * shape.batch, kv=[shape.kv] * shape.batch)
    return descriptor, inputs.make_args(descriptor, seed=1, device="cuda", lengths=lengths)


def sdpa(shape: Shape) -> Contender:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    descriptor, args = dense_problem(shape)
    q, k, v = (x.view(shape.batch, -1, *x.shape[1:]).transpose(1, 2) for x in (args.q, args.k, args.v))
    attention = torch.nn.functional.scaled_dot_product_attention

    def run() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return attention(q, k, v, is_causal=shape.causal, enable_gqa=True)

    args.o.copy_(run().transpose(1, 2).reshape(args.o.shape))
    return Contender({"impl": "sdpa-cudnn (dense)", "error_over_bound": hold_peer(descriptor, args)}, run)


def ceilings() -> dict:
    """Read bandwidth and bf16 product of this device, in this run."""
    x = torch.randn(2**30, device="cuda", dtype=torch.bfloat16)
    read = x.numel() * 2 / time_gpu(lambda: x.view(torch.int32).amax(), samples=10).median * 1e-6
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in "ab")
    return {"read_TBs": round(read, 3), "bf16_TFLOPs": round(2 * 8192**3 / time_gpu(lambda: a @ b).median * 1e-6, 1)}


def with_rate(row: dict, shape: Shape) -> dict:
    us = row["us"]["median"]
    rate = {"TBs": round(shape.bytes / us * 1e-6, 3)} if shape.q == 1 else {"TFLOPs": round(shape.flops / us * 1e-6, 1)}
    return {"shape": shape.name, **row, **rate}


def keep(rows: list, row: dict) -> None:
    rows.append(row)
    shown = {k: (round(v["median"], 1) if k == "us" and isinstance(v, dict) else v) for k, v in row.items() if k != "sku"}
    print(json.dumps(shown), flush=True)


def attempt(rows: list, shape: Shape, make) -> list[Contender]:
    """Times a peer. A peer that does not take a shape is recorded with its reason, never left out."""
    try:
        return [make()]
    except Exception as error:
        keep(rows, {"shape": shape.name, "failed": f"{type(error).__name__}: {error}"[:200]})
        return []


def take_turns(rows: list, shape: Shape, contenders: list[Contender]) -> None:
    for row in interleaved.timed(contenders, interleaved.DIRTY):
        keep(rows, with_rate(row, shape))


def machine() -> dict:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit or None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--only", choices=("prefill", "decode"))
    parser.add_argument("--commit", help="recorded in place of git's answer")
    records.add_out(parser, "attention")
    options = parser.parse_args()
    out = records.place(options.out, "attention", not options.only)
    record = {"machine": machine(), "ceilings": ceilings(), "rows": []}
    record["machine"]["commit"] = options.commit or record["machine"]["commit"]
    print(json.dumps(record["ceilings"]), flush=True)
    shapes = {"prefill": PREFILL, "decode": DECODE, None: (*PREFILL, *DECODE)}[options.only]
    for shape in shapes:
        contenders = [ours(shape)]
        if options.peers:
            for backend in ("fa2", "fa3") if shape.q > 1 else ("fa2",):
                contenders += attempt(record["rows"], shape, lambda s=shape, b=backend: flashinfer(s, b))
            if shape.q == shape.kv:
                contenders += attempt(record["rows"], shape, lambda s=shape: sdpa(s))
        take_turns(record["rows"], shape, contenders)
        torch.cuda.empty_cache()
        records.write(out, record)


if __name__ == "__main__":
    main()
