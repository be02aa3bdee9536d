"""Operand values of attention with special distributions: parameters of a variant, a packed mask, scales, sinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opfacade.core.descriptor import operands_of
from opfacade.testing.inputs import Draw

if TYPE_CHECKING:
    from torch import Tensor


def fill(draw: Draw, requests: Sequence[tuple[int, int]]) -> None:
    """Fills the special operands. `requests` contains (rows, keys) of each request."""
    values, operands = draw.values, operands_of(draw.descriptor)
    for name in ("row_params", "key_params"):
        if name in operands:  # only a few distinct values, so that some parameters are equal
            values[name] = draw.integers(0, 3, values[name].shape).int()
    if "packed_mask" in operands:
        values |= _packed_mask(draw, requests)
    positive(draw, ("k_scale", "v_scale", "q_scale"))
    if "sinks" in operands:
        none = values["sinks"] < -1.5
        values["sinks"] = (2 + 2 * values["sinks"]).masked_fill(none, float("-inf"))


def positive(draw: Draw, names: Sequence[str]) -> None:
    """Scales of ordinary size for the scale operands that exist."""
    for name in names:
        if name in draw.values:
            draw.values[name] = draw.values[name].clamp(-1.5, 1.5).exp()


def _packed_mask(draw: Draw, requests: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
    """About two thirds of the bits are set, and some rows have none; unused bytes lie between and after the requests."""
    import torch

    own, starts = [], [0]
    for q_len, kv_len in requests:
        shown = draw.uniform((q_len, kv_len)) < 0.66
        shown[draw.uniform((q_len,)) < 0.05] = False
        stray = 7 + 8 * draw.rng.randint(0, 3)
        bits = torch.nn.functional.pad(shown.flatten(), (0, stray), value=True)
        bits = bits[: bits.numel() // 8 * 8].view(-1, 8).long()
        own.append((bits << torch.arange(8, device=draw.device)).sum(-1).to(torch.uint8))
        starts.append(starts[-1] + own[-1].numel())
    packed = torch.cat(own) if own else torch.zeros(0, dtype=torch.uint8, device=draw.device)
    return {"packed_mask": packed, "mask_indptr": draw.i32(starts)}
