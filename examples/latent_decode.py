"""Latent attention (MLA) decode: a row of 512 + 64 elements that all heads share."""

import torch
from common import bf16, i32, near, rows_of

from opfacade.plans.mla import BatchMlaDecodeArgs, BatchMlaDecodeDescriptor, BatchMlaDecodePlan, PagedLatentCacheDescriptor

latents = PagedLatentCacheDescriptor(num_total_pages=4, page_size=16, dtype="bf16")
desc = BatchMlaDecodeDescriptor(
    batch_size=1, num_qo_heads=16, paged_kv=latents, page_table="block", sm_scale=0.05, return_lse=False
)
pool, q_nope, q_pe = bf16(4, 16, 576), bf16(1, 16, 512), bf16(1, 16, 64)
args = BatchMlaDecodeArgs(
    q_nope=q_nope,
    q_pe=q_pe,
    ckv=pool[..., :512],  # views of one tensor, as engines hold it
    kpe=pool[..., 512:],
    block_table=i32([[3, 0]]),
    kv_lens=i32([21]),
    o=torch.empty_like(q_nope),
)
BatchMlaDecodePlan.select(desc).run(args)
rows = rows_of(pool, [3, 0], 21).double()
scores = 0.05 * torch.cat([q_nope, q_pe], -1)[0].double() @ rows.T
near(args.o[0], scores.softmax(-1) @ rows[:, :512])
