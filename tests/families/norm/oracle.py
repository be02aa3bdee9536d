"""Norms from their formula, in numpy long doubles with the roundings that the fields name; shares no code with the library."""

import numpy as np
import torch

LARGEST = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0, "i8": 127.0}
TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def wide(tensor):
    return None if tensor is None else tensor.double().numpy().astype(np.longdouble)


def rounded(x, dtype):
    """Rounds to the nearest number of a dtype, through f64, whose rounding error is far smaller."""
    return wide(torch.from_numpy(x.astype(np.float64)).to(TORCH[dtype]))


def normed(d, x, weight=None, bias=None, residual=None, gate=None):
    """(the sum as stored in residual, the result before quantisation)."""
    x, weight, bias, residual, gate = (wide(one) for one in (x, weight, bias, residual, gate))
    total = x if residual is None else x + residual
    kept = rounded(total, d.dtype)
    if d.residual_sum == "rounded" and residual is not None:
        total = kept
    parts = total.reshape(total.shape[0], d.groups, d.hidden // d.groups)
    if d.kind == "layer":
        parts = parts - parts.mean(-1, keepdims=True)
    y = (parts / np.sqrt((parts**2).mean(-1, keepdims=True) + np.longdouble(np.float32(d.eps)))).reshape(total.shape)
    y = rounded(y, d.dtype) if d.normed == "rounded" else y
    if weight is not None:
        y = y * (weight if d.weight == "scale" else 1 + weight)
    y = y if bias is None else y + bias
    if gate is not None:
        y = y / (1 + np.exp(-gate)) * (gate if d.gate == "silu" else 1)
    return kept, y


def scales(d, y):
    """(the scale of each element, the scales as written). The latter have one row per row of y, or one row in all."""
    quant = d.quant
    count = d.hidden // quant.group if quant.scale == "group" else 1
    parts = np.abs(y).reshape(1 if quant.scale == "tensor" else y.shape[0], count, -1)
    found = np.maximum(parts.max(-1), np.longdouble(np.float32(quant.least))) / LARGEST[quant.dtype]
    if quant.scale_dtype == "f8_e8m0":
        found = np.exp2(np.clip(np.ceil(np.log2(found)), -127, 127))
    return np.repeat(found, d.hidden // count, axis=1), found
