"""A layer under torch.compile: add and norm in place, by a torch op."""

import torch
from common import DEVICE, f32, near

import opfacade.torch_ops
from opfacade.plans import norm

assert "norm_" in opfacade.torch_ops.defined()
plan = norm.NormPlan.select(norm.vllm(total_num_rows=4, hidden=64, dtype="f32", residual=True, in_place=True))


@torch.compile(fullgraph=True, backend="aot_eager")
def layer(x, residual, weight, handle):
    torch.ops.opfacade.norm_(handle, x, residual=residual, weight=weight)
    return 2 * x


x, residual = f32(4, 64), f32(4, 64)
total = (x + residual).double()
with torch.no_grad():
    y = layer(x, residual, torch.ones(64, device=DEVICE), plan.handle)
near(y, 2 * torch.nn.functional.rms_norm(total, (64,), eps=1e-6), 1e-4)
