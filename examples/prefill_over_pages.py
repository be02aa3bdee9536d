"""Prefill over a paged cache: rows of several requests, each causal over its own pages."""

import torch
from common import attention, bf16, i32, near, rows_of

from opfacade.plans.attention import (
    BatchPagedPrefillArgs,
    BatchPagedPrefillDescriptor,
    BatchPagedPrefillPlan,
    PagedKvCacheDescriptor,
)

cache = PagedKvCacheDescriptor(
    num_total_pages=16, page_size=16, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16, layout="NHD"
)
desc = BatchPagedPrefillDescriptor(
    batch_size=2, total_num_rows=7, num_qo_heads=8, causal=True, paged_kv=cache, page_table="block", return_lse=False
)
k_data, v_data, q = bf16(16, 16, 2, 64), bf16(16, 16, 2, 64), bf16(7, 8, 64)
args = BatchPagedPrefillArgs(
    q=q,
    q_indptr=i32([0, 5, 7]),  # five new rows of request 0, two of request 1
    k_data=k_data,
    v_data=v_data,
    block_table=i32([[3, 9], [4, -1]]),  # entries past a request's length may have any value
    kv_lens=i32([20, 6]),  # lengths include the new rows
    o=torch.empty_like(q),
)
BatchPagedPrefillPlan.select(desc).run(args)
for rows, pages, length in ((slice(0, 5), [3, 9], 20), (slice(5, 7), [4], 6)):
    near(args.o[rows], attention(q[rows], rows_of(k_data, pages, length), rows_of(v_data, pages, length), causal=True))
