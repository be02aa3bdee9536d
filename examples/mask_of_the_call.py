"""A mask that changes with each call, as for a tree of drafts; its bits are packed on the device."""

import torch
from common import DEVICE, attention, bf16, i32, near

from opfacade.plans.attention import BatchRaggedPrefillArgs, BatchRaggedPrefillDescriptor, BatchRaggedPrefillPlan
from opfacade.plans.mask import pack_mask

desc = BatchRaggedPrefillDescriptor(
    batch_size=1,
    total_num_rows=4,
    total_kv_rows=7,
    num_qo_heads=4,
    num_kv_heads=2,
    head_dim=64,
    causal=False,
    dtype="bf16",
    custom_mask=True,
    return_lse=False,
)
q, k, v = bf16(4, 4, 64), bf16(7, 2, 64), bf16(7, 2, 64)
seen = torch.ones(4, 7, dtype=torch.bool, device=DEVICE)
seen[:, 3:] = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], device=DEVICE).bool()
packed_mask, mask_indptr = pack_mask(seen[None])
args = BatchRaggedPrefillArgs(
    q=q,
    q_indptr=i32([0, 4]),
    k=k,
    v=v,
    kv_indptr=i32([0, 7]),
    packed_mask=packed_mask,
    mask_indptr=mask_indptr,
    o=torch.empty_like(q),
)
BatchRaggedPrefillPlan.select(desc).run(args)
near(args.o, attention(q, k, v, seen=seen))
