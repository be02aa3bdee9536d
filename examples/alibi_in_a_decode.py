"""ALiBi, or any variant or mask, for one row per request: decode supports none, so this is a prefill of one row."""

import torch
from common import DEVICE, attention, bf16, i32, near, rows_of

from opfacade.plans.attention import (
    BatchPagedPrefillArgs,
    BatchPagedPrefillDescriptor,
    BatchPagedPrefillPlan,
    PagedKvCacheDescriptor,
)
from opfacade.variant_examples import alibi, alibi_slopes

cache = PagedKvCacheDescriptor(num_total_pages=8, page_size=16, num_kv_heads=2, head_dim=64, dtype="bf16", layout="NHD")
desc = BatchPagedPrefillDescriptor(
    batch_size=2,
    total_num_rows=2,  # one row per request
    num_qo_heads=4,
    causal=True,
    paged_kv=cache,
    page_table="block",
    variant=alibi(4),
    return_lse=False,
)
k_data, v_data, q = bf16(8, 16, 2, 64), bf16(8, 16, 2, 64), bf16(2, 4, 64)
slopes = torch.tensor(alibi_slopes(4), device=DEVICE)
args = BatchPagedPrefillArgs(
    q=q,
    q_indptr=i32([0, 1, 2]),
    k_data=k_data,
    v_data=v_data,
    block_table=i32([[2, 5], [7, 0]]),
    kv_lens=i32([30, 17]),
    head_params=slopes[None],
    o=torch.empty_like(q),
)
BatchPagedPrefillPlan.select(desc).run(args)
for row, (pages, length) in enumerate((([2, 5], 30), ([7, 0], 17))):
    bias = slopes.double()[:, None, None] * (torch.arange(length, device=DEVICE) - (length - 1))
    near(args.o[[row]], attention(q[[row]], rows_of(k_data, pages, length), rows_of(v_data, pages, length), bias=bias))
