"""ALiBi in a prefill: an expression adds slope times distance to each score; the slopes are an operand."""

import torch
from common import DEVICE, attention, bf16, i32, near

from opfacade.plans.attention import BatchRaggedPrefillArgs, BatchRaggedPrefillDescriptor, BatchRaggedPrefillPlan
from opfacade.variant_examples import alibi_slopes
from opfacade.words import Variant, f32, kv_pos, per_head, q_pos, score

variant = Variant(logits=score + per_head("slopes") * f32(kv_pos - q_pos))
desc = BatchRaggedPrefillDescriptor(
    batch_size=1,
    total_num_rows=5,
    total_kv_rows=9,
    num_qo_heads=4,
    num_kv_heads=2,
    head_dim=64,
    causal=True,
    dtype="bf16",
    variant=variant,
    return_lse=False,
)
q, k, v = bf16(5, 4, 64), bf16(9, 2, 64), bf16(9, 2, 64)
slopes = torch.tensor(alibi_slopes(4), device=DEVICE)
args = BatchRaggedPrefillArgs(
    q=q, q_indptr=i32([0, 5]), k=k, v=v, kv_indptr=i32([0, 9]), head_params=slopes[None], o=torch.empty_like(q)
)
BatchRaggedPrefillPlan.select(desc).run(args)
distance = torch.arange(9, device=DEVICE) - torch.arange(4, 9, device=DEVICE)[:, None]
near(args.o, attention(q, k, v, causal=True, bias=slopes.double()[:, None, None] * distance))
