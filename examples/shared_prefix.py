"""A prefix that two requests share is read once: attention over it, over each one's own pages, and a merge of both."""

import torch
from common import DEVICE, attention, bf16, i32, near, rows_of

from opfacade import Plan
from opfacade.plans.attention import (
    BatchPagedDecodeArgs,
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillArgs,
    BatchPagedPrefillDescriptor,
    PagedKvCacheDescriptor,
)
from opfacade.plans.cascade import MergeStatesArgs, MergeStatesDescriptor

cache = PagedKvCacheDescriptor(num_total_pages=8, page_size=16, num_kv_heads=2, head_dim=64, dtype="bf16", layout="NHD")
kv, q = {"k_data": bf16(8, 16, 2, 64), "v_data": bf16(8, 16, 2, 64)}, bf16(2, 8, 64)
shared, own, both = ({"o": torch.empty_like(q), "lse": torch.empty(2, 8, device=DEVICE)} for _ in range(3))
prefix = BatchPagedPrefillDescriptor(
    batch_size=1, total_num_rows=2, num_qo_heads=8, causal=False, paged_kv=cache, page_table="block"
)
rest = BatchPagedDecodeDescriptor(batch_size=2, num_qo_heads=8, paged_kv=cache, page_table="block")
merge = MergeStatesDescriptor(num_states=2, total_num_rows=2, num_heads=8, head_dim=64, dtype="bf16", states="list")
Plan.select(prefix).run(
    BatchPagedPrefillArgs(q=q, q_indptr=i32([0, 2]), block_table=i32([[7, 3]]), kv_lens=i32([32]), **kv, **shared)
)
Plan.select(rest).run(BatchPagedDecodeArgs(q=q, block_table=i32([[1], [4]]), kv_lens=i32([5, 11]), **kv, **own))
Plan.select(merge).run(MergeStatesArgs(states_o=[shared["o"], own["o"]], states_lse=[shared["lse"], own["lse"]], **both))
for row, (page, length) in enumerate(((1, 37), (4, 43))):
    keys, values = (rows_of(kv[name], [7, 3, page], length) for name in ("k_data", "v_data"))
    near(both["o"][row : row + 1], attention(q[row : row + 1], keys, values))
