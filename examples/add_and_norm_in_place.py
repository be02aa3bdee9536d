"""The residual sum and RMS norm of a layer, in place and with vLLM's roundings."""

import torch
from common import DEVICE, bf16, near

from opfacade.plans import norm

desc = norm.vllm(total_num_rows=5, hidden=256, dtype="bf16", residual=True, in_place=True)
x, residual, weight = bf16(5, 256), bf16(5, 256), torch.ones(256, device=DEVICE).bfloat16()
total = x + residual
norm.NormPlan.select(desc).run(norm.NormArgs(x=x, residual=residual, weight=weight))
assert torch.equal(residual, total)
near(x, torch.nn.functional.rms_norm(total.double(), (256,), eps=1e-6))
