"""Rows to fp8 with a scale of each group of 128, and back."""

import torch
from common import DEVICE, bf16

from opfacade.plans.quantize import (
    DequantizeArgs,
    DequantizeDescriptor,
    DequantizePlan,
    Quant,
    QuantizeArgs,
    QuantizeDescriptor,
    QuantizePlan,
)

quant = Quant(group=128)
x, scale = bf16(7, 256), torch.empty(7, 2, device=DEVICE)
out = torch.empty(7, 256, device=DEVICE).to(torch.float8_e4m3fn)
QuantizePlan.select(QuantizeDescriptor(total_num_rows=7, hidden=256, dtype="bf16", quant=quant)).run(
    QuantizeArgs(x=x, out=out, scale=scale)
)
largest = x.double().view(7, 2, 128).abs().amax(-1)
torch.testing.assert_close(scale.double(), largest / 448, rtol=1e-6, atol=0)
again = torch.empty_like(x)
DequantizePlan.select(DequantizeDescriptor(total_num_rows=7, hidden=256, dtype="bf16", quant=quant)).run(
    DequantizeArgs(x=out, scale=scale, out=again)
)
torch.testing.assert_close(again, x, rtol=2**-3, atol=2**-6)
