"""Packed documents: tokens of one request see only their own document, by a mask that is an expression."""

import torch
from common import DEVICE, attention, bf16, i32, near

from opfacade.plans.attention import BatchRaggedPrefillArgs, BatchRaggedPrefillDescriptor, BatchRaggedPrefillPlan
from opfacade.words import Variant, eq, per_key, per_row

variant = Variant(mask=eq(per_row("row_document"), per_key("key_document")))
desc = BatchRaggedPrefillDescriptor(
    batch_size=1,
    total_num_rows=8,
    total_kv_rows=8,
    num_qo_heads=4,
    num_kv_heads=4,
    head_dim=64,
    causal=True,
    dtype="bf16",
    variant=variant,
    return_lse=False,
)
q, k, v = bf16(8, 4, 64), bf16(8, 4, 64), bf16(8, 4, 64)
document = i32([0, 0, 0, 1, 1, 2, 2, 2])
args = BatchRaggedPrefillArgs(
    q=q,
    q_indptr=i32([0, 8]),
    k=k,
    v=v,
    kv_indptr=i32([0, 8]),
    row_params=document[None],
    key_params=document[None],
    o=torch.empty_like(q),
)
BatchRaggedPrefillPlan.select(desc).run(args)
seen = document[:, None] == document[None]
near(args.o, attention(q, k, v, causal=True, seen=seen.to(DEVICE)))
