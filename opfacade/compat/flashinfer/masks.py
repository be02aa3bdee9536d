"""The packed mask of a call, from a custom mask of plan(), boolean or packed."""

from __future__ import annotations

import torch

from opfacade.compat.flashinfer.paged import Mask
from opfacade.compat.refusals import require_tensor, wrong_shape
from opfacade.plans.mask import segment_packbits

Given = tuple[torch.Tensor | None, torch.Tensor | None]
Buffers = tuple[torch.Tensor | None, torch.Tensor | None]


def mask_of(op: str, given: Given, q_lens: torch.Tensor, kv_lens: torch.Tensor, buffers: Buffers = (None, None)) -> Mask | None:
    """given: custom_mask `[sum of q_len * kv_len]`, row-major for each request, or its bits, where each request begins a new
    byte. Lengths are on the device. The result is in the caller's buffers where a graph reads those."""
    custom, packed = given
    if custom is None and packed is None:
        return None
    device = q_lens.device
    sizes = q_lens.long() * kv_lens.long()
    if packed is not None:
        require_tensor(op, "packed_custom_mask", packed, "bytes")
        starts = torch.nn.functional.pad(((sizes + 7) // 8).cumsum(0), (1, 0)).int()
        return _kept(op, Mask(packed.to(device), starts), buffers)
    assert custom is not None
    indptr = torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).int()
    return _kept(op, Mask(*segment_packbits(custom.to(device).reshape(-1).bool(), indptr)), buffers)


def _kept(op: str, mask: Mask, buffers: Buffers) -> Mask:
    bits, starts = buffers
    if bits is None or starts is None:
        return mask
    if starts.shape != mask.indptr.shape:
        raise wrong_shape(op, "mask_indptr_buf", str(list(mask.indptr.shape)), list(starts.shape))
    count = min(bits.shape[0], mask.packed.shape[0])
    bits[:count].copy_(mask.packed[:count])
    starts.copy_(mask.indptr)
    return Mask(bits, starts)
