"""P10: prefill beside a gather of K and V on another stream, and what each takes alone."""

from __future__ import annotations

from typing import Any

from bench.ranks.process import Ranks
from bench.ranks.race import race
from opfacade import Plan
from opfacade.plans.attention import BatchRaggedPrefillArgs, BatchRaggedPrefillDescriptor

HEADS, KV, DIM = 32, 8, 128
TOKENS = (8192, 32768)  # 4 KB of K and V for each: gathers of 34 and 134 MB


def beside(ranks: Ranks) -> dict[str, Any]:
    """By tokens of all ranks: causal prefill of this rank's share of the rows, the gather by NCCL, and both at once."""
    ranks.join()
    found = {}
    for tokens in (256,) if ranks.cpu else TOKENS:
        found[str(tokens)] = _raced(ranks, tokens)
        ranks.keep({"tokens": found})
    return {"tokens": found}


def _raced(ranks: Ranks, tokens: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    own, kind = tokens // ranks.world, torch.float32 if ranks.cpu else torch.bfloat16
    d = BatchRaggedPrefillDescriptor(
        batch_size=1, total_num_rows=own, total_kv_rows=tokens, num_qo_heads=HEADS, num_kv_heads=KV, head_dim=DIM, causal=True,
        dtype=kind, return_lse=False,
    )  # fmt: skip
    q, k, v = (torch.randn(n, h, DIM, device=ranks.device).to(kind) for n, h in ((own, HEADS), (tokens, KV), (tokens, KV)))
    ends = [torch.tensor([0, n], dtype=torch.int32, device=ranks.device) for n in (own, tokens)]
    args = BatchRaggedPrefillArgs(q=q, k=k, v=v, q_indptr=ends[0], kv_indptr=ends[1], o=torch.empty_like(q))
    plan = Plan.select(d)
    share, wide = (
        torch.randn(own, 2 * KV * DIM, device=ranks.device).to(kind),
        torch.empty(tokens, 2 * KV * DIM, dtype=kind, device=ranks.device),
    )

    def gather() -> None:
        dist.all_gather_into_tensor(wide, share)

    def both() -> None:
        side = torch.cuda.Stream()
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            gather()
        plan.run(args)
        here.wait_stream(side)

    calls = {"prefill": lambda: plan.run(args), "gather": gather} | ({} if ranks.cpu else {"both": both})
    return {"bytes_in": wide.nbytes - share.nbytes} | race(ranks, calls, 2)
