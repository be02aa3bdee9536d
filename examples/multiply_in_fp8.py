"""Quantise activations and a weight to fp8, then multiply them: the product takes the scales as `quantize` writes them."""

import torch
from common import DEVICE, bf16, near

from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor, MatmulPlan, Scaling
from opfacade.plans.quantize import Quant, QuantizeArgs, QuantizeDescriptor, QuantizePlan

E4M3 = torch.float8_e4m3fn


def quantised(x, quant, scales):
    """x in fp8 with its scales: x is near out * scale."""
    out, scale = torch.empty(x.shape, dtype=E4M3, device=DEVICE), torch.empty(scales, device=DEVICE)
    desc = QuantizeDescriptor(total_num_rows=x.shape[0], hidden=x.shape[1], dtype="bf16", quant=quant)
    QuantizePlan.select(desc).run(QuantizeArgs(x=x, out=out, scale=scale))
    return out, scale


rows, n, k = 7, 256, 384
x, weight = bf16(rows, k), bf16(n, k)
x8, x_scale = quantised(x, Quant(group=128), (rows, k // 128))  # in every step
weight8, weight_scale = quantised(weight, Quant(scale="block"), (n // 128, k // 128))  # once

desc = MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype="f8_e4m3", scaling=Scaling(kind="block"))
out = torch.empty(rows, n, dtype=torch.bfloat16, device=DEVICE)  # out_dtype is bf16 by default for fp8
MatmulPlan.select(desc).run(MatmulArgs(x=x8, weight=weight8, x_scale=x_scale, weight_scale=weight_scale, out=out))

x_back = x8.double() * x_scale.double().repeat_interleave(128, 1)
weight_back = weight8.double() * weight_scale.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
near(out, x_back @ weight_back.T)  # the product is exact up to its rounding
error = (out.double() - x.double() @ weight.double().T).norm() / out.double().norm()
assert error < 0.06  # what fp8 costs
