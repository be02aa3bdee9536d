"""FlashInfer's packing of bits: eight elements a byte, each segment from a byte of its own."""

from __future__ import annotations

import torch

from opfacade.compat.flashinfer.bits import bytes_of_bits, segments
from opfacade.compat.refusals import require_tensor, wrong


def packbits(x: torch.Tensor, bitorder: str = "big") -> torch.Tensor:
    """x `[n]`, zero or not: `[ceil(n / 8)]` uint8. bitorder: which bit of a byte is the first, "big" (128) or "little" (1)."""
    (count,) = require_tensor("packbits", "x", x, "n")
    bits = torch.nn.functional.pad(x.bool(), (0, -count % 8))
    return bytes_of_bits(bits, _is_little("packbits", bitorder))


def segment_packbits(x: torch.Tensor, indptr: torch.Tensor, bitorder: str = "big") -> tuple[torch.Tensor, torch.Tensor]:
    """x `[n]` of which segment i is x[indptr[i]:indptr[i + 1]]: the bytes of all, and where each begins, `[segments + 1]` i32.

    The number of bytes is read from the device.
    """
    require_tensor("segment_packbits", "x", x, "n")
    require_tensor("segment_packbits", "indptr", indptr, "segments + 1")
    packed, starts = segments(x.bool(), indptr.to(x.device), _is_little("segment_packbits", bitorder))
    return packed[: int(starts[-1])], starts


def _is_little(op: str, bitorder: str) -> bool:
    if bitorder not in ("big", "little"):
        raise wrong(op, "bitorder", "'big' or 'little'", repr(bitorder))
    return bitorder == "little"
