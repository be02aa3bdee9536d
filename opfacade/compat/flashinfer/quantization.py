"""FlashInfer's group quantisation, and packing of bits: eight elements per byte; each segment begins a new byte."""

from __future__ import annotations

import torch

from opfacade.compat.constants import even_indptr
from opfacade.compat.flashinfer._group_quant import per_token_group_quant_8bit as per_token_group_quant_8bit
from opfacade.compat.refusals import require_tensor, wrong
from opfacade.plans.mask import BitOrder
from opfacade.plans.mask import segment_packbits as pack


def packbits(x: torch.Tensor, bitorder: str = "big") -> torch.Tensor:
    """Packs x `[n]` into bits, 1 for nonzero elements: `[ceil(n / 8)]` uint8. bitorder: the first bit of a byte, "big" (128) or
    "little" (1)."""
    (count,) = require_tensor("packbits", "x", x, "n")
    one_segment = even_indptr(1, count, x.device)
    return pack(x.bool().contiguous(), one_segment, bit_order=_order("packbits", bitorder))[0]


def segment_packbits(x: torch.Tensor, indptr: torch.Tensor, bitorder: str = "big") -> tuple[torch.Tensor, torch.Tensor]:
    """Packs x `[n]` by segments, where segment i is x[indptr[i]:indptr[i + 1]]; returns all bytes, and the first byte of each
    segment, `[segments + 1]` i32. The number of bytes is read from the device."""
    require_tensor("segment_packbits", "x", x, "n")
    require_tensor("segment_packbits", "indptr", indptr, "segments + 1")
    if indptr.device.type == "meta":
        raise wrong("segment_packbits", "indptr", "a tensor with memory: the number of bytes is read from it", "one without")
    order, starts = _order("segment_packbits", bitorder), indptr.to(x.device, torch.int32)
    packed, starts = pack(x.bool().contiguous(), starts, bit_order=order)
    return packed[: int(starts[-1])], starts


def _order(op: str, bitorder: str) -> BitOrder:
    if isinstance(bitorder, str) and bitorder == "big":
        return "big"
    if isinstance(bitorder, str) and bitorder == "little":
        return "little"
    raise wrong(op, "bitorder", "'big' or 'little'", repr(bitorder))
