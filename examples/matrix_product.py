"""A matrix product (GEMM) with bias and activation."""

import torch
from common import bf16, near

from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor, MatmulPlan

desc = MatmulDescriptor(total_num_rows=7, n=96, k=128, dtype="bf16", bias=True, activation="silu")
x, weight, bias = bf16(7, 128), bf16(96, 128), bf16(96)
out = torch.empty(7, 96, dtype=torch.bfloat16, device=x.device)
MatmulPlan.select(desc).run(MatmulArgs(x=x, weight=weight, bias=bias, out=out))
near(out, torch.nn.functional.silu(x.double() @ weight.double().T + bias.double()), 3e-2)
