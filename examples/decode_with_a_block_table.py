"""Decode, the first call of a serving engine: one row per request over a block table, only on CUDA kernels."""

import torch
from common import DEVICE, attention, bf16, i32, near, rows_of

from opfacade import Preference
from opfacade.plans.attention import (
    BatchPagedDecodeArgs,
    BatchPagedDecodeDescriptor,
    BatchPagedDecodePlan,
    PagedKvCacheDescriptor,
)

cache = PagedKvCacheDescriptor(num_total_pages=16, page_size=16, num_kv_heads=2, head_dim=64, dtype="bf16", layout="NHD")
desc = BatchPagedDecodeDescriptor(batch_size=3, num_qo_heads=8, paged_kv=cache, page_table="block", return_lse=False)
# backend="cuda" raises if no kernel fits, instead of running the slow reference.
plan = BatchPagedDecodePlan.select(desc, Preference(backend="cuda") if DEVICE == "cuda" else None)
k_data, v_data, q = bf16(16, 16, 2, 64), bf16(16, 16, 2, 64), bf16(3, 8, 64)
pages, lengths = [[3, 1, 4], [5], [9, 2]], [40, 7, 20]
args = BatchPagedDecodeArgs(
    q=q,
    k_data=k_data,
    v_data=v_data,
    block_table=i32([row + [-1] * (3 - len(row)) for row in pages]),
    kv_lens=i32(lengths),
    o=torch.empty_like(q),
)
plan.run(args)
for row, (own, length) in enumerate(zip(pages, lengths, strict=True)):
    near(args.o[row : row + 1], attention(q[row : row + 1], rows_of(k_data, own, length), rows_of(v_data, own, length)))
