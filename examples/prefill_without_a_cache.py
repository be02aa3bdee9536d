"""Prefill where K and V are contiguous rows: an encoder, or a first step without a cache."""

import torch
from common import attention, bf16, i32, near

from opfacade.plans.attention import BatchRaggedPrefillArgs, BatchRaggedPrefillDescriptor, BatchRaggedPrefillPlan

desc = BatchRaggedPrefillDescriptor(
    batch_size=2, total_num_rows=9, total_kv_rows=9, num_qo_heads=4, num_kv_heads=2, head_dim=64, causal=True, dtype="bf16"
)
q, k, v, indptr = bf16(9, 4, 64), bf16(9, 2, 64), bf16(9, 2, 64), i32([0, 6, 9])
lse = torch.empty(9, 4, device=q.device)
args = BatchRaggedPrefillArgs(q=q, q_indptr=indptr, k=k, v=v, kv_indptr=indptr, o=torch.empty_like(q), lse=lse)
BatchRaggedPrefillPlan.select(desc).run(args)
for rows in (slice(0, 6), slice(6, 9)):
    near(args.o[rows], attention(q[rows], k[rows], v[rows], causal=True))
