"""Tensor-parallel attention: each rank has a part of the heads, and a descriptor with these numbers of heads."""

import torch
from common import attention, bf16, i32, near, rows_of

from opfacade.plans.attention import (
    BatchPagedDecodeArgs,
    BatchPagedDecodeDescriptor,
    BatchPagedDecodePlan,
    PagedKvCacheDescriptor,
)

RANKS, HEADS, KV_HEADS = 2, 8, 4
cache = PagedKvCacheDescriptor(
    num_total_pages=4, page_size=16, num_kv_heads=KV_HEADS // RANKS, head_dim=64, dtype="bf16", layout="NHD"
)
desc = BatchPagedDecodeDescriptor(
    batch_size=1, num_qo_heads=HEADS // RANKS, paged_kv=cache, page_table="block", return_lse=False
)
plan = BatchPagedDecodePlan.select(desc)  # the same on every rank, so one kernel serves all
k_data, v_data, q = bf16(4, 16, KV_HEADS, 64), bf16(4, 16, KV_HEADS, 64), bf16(1, HEADS, 64)
shares = []
for own_k, own_v, own_q in zip(k_data.chunk(RANKS, 2), v_data.chunk(RANKS, 2), q.chunk(RANKS, 1), strict=True):
    args = BatchPagedDecodeArgs(  # each rank runs this on its GPU; here they run one after the other
        q=own_q.contiguous(),
        k_data=own_k.contiguous(),
        v_data=own_v.contiguous(),
        block_table=i32([[2, 0]]),
        kv_lens=i32([25]),
        o=torch.empty(1, HEADS // RANKS, 64, dtype=torch.bfloat16, device=q.device),
    )
    plan.run(args)
    shares.append(args.o)
near(torch.cat(shares, 1), attention(q, rows_of(k_data, [2, 0], 25), rows_of(v_data, [2, 0], 25)))
