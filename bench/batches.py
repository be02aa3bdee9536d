"""Prefill of batches with the request lengths of real services, compared with peers: `python -m bench.batches [--data DIR]
[--peers] [--out FILE]`.

DIR holds published request lengths (azure-llm-2023-*.csv). For each service: whole prompts; the second half of each prompt,
with the first half cached; and 64 decodes together with a chunk of 2048 tokens in one launch. Then rows on 240,000 keys
together with 512 rows of a prompt, and each of the two alone. Then the cost of a variant, a mask or an fp8 cache against the
plain kernel on 8192 tokens, round-robin. TFLOP/s count visible pairs only. Outputs are checked against the bound first.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bench import interleaved, records
from bench.attention import CUDA, ceilings, machine
from bench.interleaved import Contender
from examples.demo.lengths import from_trace
from opfacade import Plan, Target
from opfacade.bench import peers
from opfacade.errors import OpfacadeError
from opfacade.plans._attention.paging import PagedKvCacheDescriptor
from opfacade.plans._attention.variant_examples import alibi, alibi_slopes, document_mask
from opfacade.plans.attention import BatchPagedPrefillDescriptor
from opfacade.testing import inputs, numerics
from opfacade.tools.workload import Lengths, Work

HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16


@dataclass(frozen=True)
class Batch:
    name: str
    q: tuple[int, ...]
    kv: tuple[int, ...]
    dtype: str = "bf16"
    facts: dict[str, Any] = field(default_factory=dict)
    tokens: int = 0  # pages of a pool that requests share; 0: each request has its own pages

    @property
    def flops(self) -> float:
        hidden = 1 if self.facts.get("causal", True) else 0
        pairs = sum(q * kv - hidden * q * (q - 1) // 2 for q, kv in zip(self.q, self.kv, strict=True))
        return 4.0 * pairs * HEADS * DIM

    @property
    def work(self) -> Work:
        indices = sum(-(-n // PAGE) for n in self.kv)
        pages = self.tokens // PAGE or indices
        sizes = {"num_total_pages": pages, "page_size": PAGE, "num_kv_heads": KV_HEADS, "head_dim": DIM}
        cache = PagedKvCacheDescriptor(**sizes, dtype=self.dtype, layout="NHD")
        rows = {"batch_size": len(self.q), "total_num_rows": sum(self.q), "num_qo_heads": HEADS, "causal": True}
        rows |= {"max_kv_indices": indices} if self.tokens else {}
        descriptor = BatchPagedPrefillDescriptor.model_validate({**rows, "paged_kv": cache, "return_lse": False, **self.facts})
        return Work(descriptor, lengths=Lengths(q=self.q, kv=self.kv))


def served(folder: Path) -> Iterator[Batch]:
    for path in sorted(folder.glob("azure-llm-2023-*.csv")):
        name, requests = path.stem.rpartition("-")[2], from_trace(path, 4096)
        prompts = tuple(x.context for x in requests[::256])
        yield Batch(f"{name}, {len(prompts)} prompts of {sum(prompts)} tokens", prompts, prompts)
        fresh = tuple(n - n // 2 for n in prompts)
        yield Batch(f"{name}, the second halves of {len(prompts)} prompts", fresh, prompts)
        decodes = tuple(x.cached for x in requests[::64][:64])
        chunk = max(prompts)
        yield Batch(
            f"{name}, 64 decodes and a chunk of {min(2048, chunk)} at {chunk}",
            (*(1,) * len(decodes), min(2048, chunk)),
            (*decodes, chunk),
        )


LONG, PROMPT = 240_000, 512


def mixed() -> Iterator[Batch]:
    """Long rows together with a prompt, and each alone."""
    yield Batch(f"{PROMPT} rows alone", (PROMPT,), (PROMPT,))
    for count in (1, 8, 64):
        tokens = min(count, 8) * (LONG + PROMPT)
        facts = {"max_kv_len": LONG}
        long = (1,) * count, (LONG,) * count
        yield Batch(f"{count} rows on {LONG} alone", *long, facts=facts, tokens=tokens)
        yield Batch(
            f"{count} rows on {LONG} beside {PROMPT}", (*long[0], PROMPT), (*long[1], PROMPT), facts=facts, tokens=tokens
        )


def changed() -> Iterator[Batch]:
    """One prompt of 8192 tokens: the plain kernel, and each option that may be added."""
    one = (8192,)
    yield Batch("8192, plain", one, one)
    yield Batch("8192, ALiBi", one, one, facts={"variant": alibi(HEADS)})
    yield Batch("8192, document mask", one, one, facts={"variant": document_mask()})
    yield Batch("8192, packed mask", one, one, facts={"causal": False, "custom_mask": True})
    yield Batch("8192, soft cap", one, one, facts={"logits_soft_cap": 30.0})
    yield Batch("8192, sinks", one, one, facts={"sinks": True})
    for dtype in ("f8_e4m3", "f8_e5m2"):
        yield Batch(f"8192, {dtype} cache", one, one, dtype, {"q_dtype": "bf16", "kv_scale": "tensor"})


def shared_args(batch: Batch) -> Any:
    """Requests share a pool that is too large to be created in f32; each has its pages in a separate random order."""
    args = inputs.make_args(batch.work.descriptor, 1, "cuda", inputs.DrawnLengths(q=list(batch.q), kv=list(batch.q)))
    for pool in (args.k_data, args.v_data):
        pool.normal_()
    counts = [-(-n // PAGE) for n in batch.kv]
    order = torch.randperm(batch.tokens // PAGE, device="cuda").to(torch.int32)
    device = order.device
    return replace(
        args,
        kv_indices=torch.cat([order.roll(997 * i)[:n] for i, n in enumerate(counts)]),
        kv_indptr=torch.tensor([0, *counts], device=device).cumsum(0).to(torch.int32),
        last_page_len=torch.tensor([(n - 1) % PAGE + 1 for n in batch.kv], dtype=torch.int32, device=device),
    )


def args_of(batch: Batch) -> Any:
    if batch.tokens:
        return shared_args(batch)
    args = inputs.make_args(batch.work.descriptor, 1, "cuda", inputs.DrawnLengths(q=list(batch.q), kv=list(batch.kv)))
    if batch.facts.get("variant") == alibi(HEADS):
        args.head_params.copy_(torch.tensor([alibi_slopes(HEADS)]))
    return args


def ours(batch: Batch, args: Any) -> Contender:
    plan: Plan[Any] = Plan.select(batch.work.descriptor, CUDA)
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
    plan.run(args, workspace)
    report = numerics.check(batch.work.descriptor, args, plan.sku, rows=8)
    if not report.worst <= 1:
        raise SystemExit(f"{batch.name}: wrong result, not timed: {report}")
    row = {"impl": "opfacade", "sku": plan.sku.id, "error_over_bound": round(report.worst, 3)}
    return Contender(row, lambda: plan.run(args, workspace))


def theirs(peer: peers.Peer, batch: Batch, args: Any) -> Contender | dict[str, Any]:
    try:
        call, facts = peers.call(peer, batch.work, args, Target.current())
    except OpfacadeError as error:  # a peer that does not support a batch is recorded with its reason
        return {"impl": peer.name, "declined": str(error)[:200]}
    return Contender({"impl": peer.name, **facts}, call)


def rows(batch: Batch, beside: bool) -> Iterator[dict[str, Any]]:
    args = args_of(batch)
    found = [ours(batch, args), *(theirs(peer, batch, args) for peer in (peers.PEERS if beside else ()))]
    declined = [row for row in found if isinstance(row, dict)]
    for row in (*interleaved.timed([one for one in found if isinstance(one, Contender)], interleaved.DIRTY), *declined):
        yield with_rate(batch, row)


def with_rate(batch: Batch, row: dict[str, Any]) -> dict[str, Any]:
    rate = {"TFLOPs": round(batch.flops / row["us"]["median"] * 1e-6, 1)} if "us" in row else {}
    return {"batch": batch.name, **row, **rate}


def variants_of_one(only: str) -> Iterator[dict[str, Any]]:
    """Times only our kernels, alternating the plain call and the changed calls."""
    batches = [batch for batch in changed() if re.search(only, batch.name)]
    contenders = [ours(batch, args_of(batch)) for batch in batches]
    for batch, row in zip(batches, interleaved.timed(contenders, interleaved.DIRTY) if contenders else (), strict=True):
        yield with_rate(batch, row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--only", default="", help="batches whose name this regular expression finds")
    parser.add_argument("--commit", help="recorded in place of git's answer")
    records.add_out(parser, "batches")
    options = parser.parse_args()
    out = records.place(options.out, "batches", not options.only)
    record: dict[str, Any] = {"machine": machine(), "ceilings": ceilings(), "rows": []}
    record["machine"]["commit"] = options.commit or record["machine"]["commit"]
    batches = (*(served(options.data) if options.data else ()), *mixed())
    chosen = [batch for batch in batches if re.search(options.only, batch.name)]
    for some in (*(rows(batch, options.peers) for batch in chosen), variants_of_one(options.only)):
        for row in some:
            record["rows"].append(row)
            print(json.dumps({k: v["median"] if isinstance(v, dict) else v for k, v in row.items() if k != "sku"}), flush=True)
            records.write(out, record)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
