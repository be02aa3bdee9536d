"""Bits of segments into bytes, on the device, without reading a length on the host."""

from __future__ import annotations

import torch


def bytes_of_bits(bits: torch.Tensor, little: bool) -> torch.Tensor:
    """bool [8 n] as uint8 [n]."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    weights = torch.ones_like(places) << (places if little else 7 - places)
    return (bits.view(-1, 8).to(torch.uint8) * weights).sum(-1, dtype=torch.uint8)


def segments(bits: torch.Tensor, indptr: torch.Tensor, little: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """bool [n] in segments: uint8 [n // 8 + segments], of which the bytes past the last start stay 0, and the starts, i32."""
    sizes = indptr.diff().long()
    starts = torch.nn.functional.pad(((sizes + 7) // 8).cumsum(0), (1, 0))
    element = torch.arange(bits.shape[0], device=bits.device)
    owner = torch.searchsorted(indptr[1:].long().contiguous(), element, right=True).clamp(max=max(0, sizes.shape[0] - 1))
    spread = torch.zeros(8 * (bits.shape[0] // 8 + sizes.shape[0]), dtype=torch.bool, device=bits.device)
    if sizes.shape[0]:
        spread[element - indptr.long()[owner] + 8 * starts[owner]] = bits
    return bytes_of_bits(spread, little), starts.int()
