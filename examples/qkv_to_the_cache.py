"""Norm and rotation of q and k, and the append of k and v to vLLM's slots, in one launch."""

import torch
from common import DEVICE, bf16

from opfacade.plans.attention import PagedKvCacheDescriptor
from opfacade.plans.rotary import QkvPrepareArgs, QkvPrepareDescriptor, QkvPreparePlan, rotary_table

cache = PagedKvCacheDescriptor(num_total_pages=4, page_size=16, num_kv_heads=2, head_dim=64, dtype="bf16", layout="NHD")
desc = QkvPrepareDescriptor(total_num_rows=3, num_qo_heads=8, paged_kv=cache, rotary_dim=64, dtype="bf16", norm="rms")
qkv, weight = bf16(3, 12, 64), torch.ones(64, device=DEVICE).bfloat16()
k_data, v_data = (torch.zeros(4, 16, 2, 64, device=DEVICE).bfloat16() for _ in range(2))
q_out = torch.zeros(3, 8, 64, device=DEVICE).bfloat16()
args = QkvPrepareArgs(
    q=qkv[:, :8],
    k=qkv[:, 8:10],
    v=qkv[:, 10:],
    q_weight=weight,
    k_weight=weight,
    q_out=q_out,
    positions=torch.tensor([0, 5, 6], device=DEVICE),
    cos_sin_cache=rotary_table(rotary_dim=64, max_positions=64, base=10000.0, device=DEVICE),
    k_data=k_data,
    v_data=v_data,
    slots=torch.tensor([5, 33, -1], device=DEVICE),  # page * page_size + token; -1 writes nothing
)
QkvPreparePlan.select(desc).run(args)
assert torch.equal(v_data[0, 5], qkv[0, 10:])
assert torch.equal(v_data[2, 1], qkv[1, 10:])
assert v_data.count_nonzero() == qkv[:2, 10:].count_nonzero()
normed = torch.nn.functional.rms_norm(qkv[0, :8].double(), (64,), eps=1e-6)
torch.testing.assert_close(q_out[0].double(), normed, rtol=2e-2, atol=2e-2)  # position 0 has the angle 0, so it is not rotated
