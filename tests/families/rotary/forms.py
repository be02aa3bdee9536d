"""Rotary problems that together use every feature, and values for their operands."""

import torch

from opfacade.plans.rotary import RotaryDescriptor

FORMS = {
    "half": {},
    "neighbours": {"interleaved": True},
    "inverse": {"inverse": True},
    "partial": {"head_dim": 96, "rotary_dim": 48},
    "offset": {"head_dim": 192, "rotary_dim": 64, "rotary_offset": 128, "interleaved": True},
    "odd": {"head_dim": 33, "rotary_dim": 10, "rotary_offset": 3},
    "odd_neighbours": {"head_dim": 33, "rotary_dim": 10, "rotary_offset": 7, "interleaved": True},
    "wide": {"head_dim": 256, "rotary_dim": 256},
    "sections": {"head_dim": 128, "rotary_dim": 128, "sections": (16, 24, 24)},
    "sections_mixed": {"head_dim": 128, "rotary_dim": 128, "sections": (24, 20, 20), "section_order": "interleaved"},
    "sections_neighbours": {"sections": (5, 3, 11, 13), "interleaved": True},
    "no_k": {"num_kv_heads": 0},
    "many": {"num_qo_heads": 33, "num_kv_heads": 7},
    "bf16_table": {"table_dtype": "bf16"},
    "i32": {"positions": "i32"},
}


def problem(rows, **fields):
    sizes = {"num_qo_heads": 5, "num_kv_heads": 2, "head_dim": 64, "rotary_dim": 64, "dtype": "bf16"}
    return RotaryDescriptor(total_num_rows=rows, **sizes | fields)


def spread(tensor, generator):
    """A tensor of the same shape and dtype, with values of very different magnitudes, infinities and NaN."""
    if tensor is None:
        return None
    wide = torch.randn(tensor.shape, generator=generator) * torch.exp(2 * torch.randn(tensor.shape, generator=generator))
    wide.view(-1)[::97] = float("inf")
    wide.view(-1)[3::101] = float("nan")
    return wide.to(tensor.dtype)
