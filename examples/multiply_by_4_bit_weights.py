"""Convert the 4-bit weight of an AWQ checkpoint once, then multiply by it: the codes are decoded inside the product."""

import torch
from common import DEVICE, bf16, near

from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor, MatmulPlan, Weight
from opfacade.plans.weights import PackWeightsArgs, PackWeightsDescriptor, PackWeightsPlan

rows, n, k, group = 7, 128, 256, 128
# The tensors of a checkpoint: 8 codes of columns in a word, scales and zero points of 128 elements of k.
qweight = torch.randint(-(2**31), 2**31, (k, n // 8), device=DEVICE).int()
qzeros = torch.randint(-(2**31), 2**31, (k // group, n // 8), device=DEVICE).int()
scales = (torch.rand(k // group, n, device=DEVICE) / 64).half()

# dequantise="rounded": as in AWQ's own kernels, a decoded number is rounded to the type of x.
form = Weight(dtype="uint4", group=group, scale_dtype="f16", zero="int", dequantise="rounded")
weight = torch.empty(n, k // 2, dtype=torch.uint8, device=DEVICE)
weight_scale = torch.empty(n, k // group, dtype=torch.float16, device=DEVICE)
weight_zero = torch.empty(n, k // group, dtype=torch.uint8, device=DEVICE)
packed = {"weight": weight, "weight_scale": weight_scale, "weight_zero": weight_zero}
pack = PackWeightsPlan.select(PackWeightsDescriptor(source="awq", n=n, k=k, weight_format=form))  # when the model is loaded
pack.run(PackWeightsArgs(stored_weight=qweight, stored_scale=scales, stored_zero=qzeros, **packed))

x, out = bf16(rows, k), torch.empty(rows, n, dtype=torch.bfloat16, device=DEVICE)
product = MatmulPlan.select(MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype="bf16", weight_format=form))
product.run(MatmulArgs(x=x, out=out, **packed))  # in every step


def codes(words):
    """AWQ stores the columns 0, 2, 4, 6, 1, 3, 5, 7 of eight from the low bits on."""
    shifts = 4 * torch.tensor([0, 4, 1, 5, 2, 6, 3, 7], device=DEVICE)
    return (words[..., None] >> shifts & 15).flatten(1).double()


decoded = (codes(qweight) - codes(qzeros).repeat_interleave(group, 0)) * scales.double().repeat_interleave(group, 0)
near(out, x.double() @ decoded)
