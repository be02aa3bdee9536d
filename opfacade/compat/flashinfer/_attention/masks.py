"""The packed mask of a call, from a custom mask, boolean or packed."""

from __future__ import annotations

import torch

from opfacade.compat.flashinfer._attention.paged_call import Mask
from opfacade.compat.refusals import require_dense, require_tensor, wrong_dtype, wrong_shape
from opfacade.plans.mask import segment_packbits

Given = tuple[torch.Tensor | None, torch.Tensor | None]
Buffers = tuple[torch.Tensor | None, torch.Tensor | None]
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def entries_of(op: str, custom: torch.Tensor) -> torch.Tensor:
    """The entries of custom_mask (bools or integers in any shape) as a flat, contiguous tensor that can be packed."""
    require_dense(op, "custom_mask", custom, "sum of q_len * kv_len")
    if custom.dtype != torch.bool and custom.dtype not in _WHOLE:
        hint = "An additive mask is none of entries: where it has 0 and -inf, pass custom_mask == 0."
        raise wrong_dtype(op, "custom_mask", "torch.bool or an integer dtype, true where a row sees a key", custom.dtype, hint)
    flat = custom.reshape(-1).contiguous()
    return flat if custom.dtype in (torch.bool, torch.uint8) else flat != 0


def bits_of(op: str, packed: torch.Tensor) -> torch.Tensor:
    """packed_custom_mask: uint8 `[bytes]`."""
    require_tensor(op, "packed_custom_mask", packed, "bytes")
    if packed.dtype != torch.uint8:
        raise wrong_dtype(op, "packed_custom_mask", torch.uint8, packed.dtype)
    return packed


def mask_of(op: str, given: Given, q_lens: torch.Tensor, kv_lens: torch.Tensor, buffers: Buffers = (None, None)) -> Mask | None:
    """given: custom_mask `[sum of q_len * kv_len]`, row-major for each request, or its packed bits, where each request starts a
    new byte. Lengths are on the device. If a graph reads the caller's buffers, the result is written to them.

    A mask on the host is compared with the lengths; one on a GPU is not, because that would wait for the GPU.
    """
    custom, packed = given
    if custom is None and packed is None:
        return None
    device = q_lens.device
    sizes = q_lens.long() * kv_lens.long()
    if packed is not None:
        starts = torch.nn.functional.pad(((sizes + 7) // 8).cumsum(0), (1, 0)).int()
        bits = bits_of(op, packed)
        if _readable(bits, sizes) and bits.shape[0] < int(starts[-1]):
            raise wrong_shape(op, "packed_custom_mask", f"{int(starts[-1])} bytes or more", list(bits.shape))
        return _kept(op, Mask(bits.to(device), starts), buffers)
    assert custom is not None
    entries = entries_of(op, custom)
    if _readable(entries, sizes):
        _require_entries(op, custom.shape, kv_lens.tolist(), sizes.tolist())
    indptr = torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).int()
    return _kept(op, Mask(*segment_packbits(entries.to(device), indptr)), buffers)


def _readable(mask: torch.Tensor, sizes: torch.Tensor) -> bool:
    """Whether the lengths may be read, because copying a mask from the host waits for the GPU anyway."""
    return mask.device.type == "cpu" and sizes.device.type != "meta"


def _require_entries(op: str, shape: torch.Size, kv_lens: list[int], sizes: list[int]) -> None:
    """Checks that the last dimension of a mask with several dimensions contains keys, or all entries of a request, so that the
    mask is not transposed."""
    if shape.numel() != sum(sizes):
        raise wrong_shape(op, "custom_mask", f"{sum(sizes)} entries, the sum of q_len * kv_len", list(shape))
    if len(shape) > 1 and sizes and not any(set(lens) == {shape[-1]} for lens in (kv_lens, sizes, [sum(sizes)])):
        raise wrong_shape(op, "custom_mask", f"keys in the last dimension; kv_len is {kv_lens[:8]}", list(shape))


def _kept(op: str, mask: Mask, buffers: Buffers) -> Mask:
    bits, starts = buffers
    if bits is None or starts is None:
        return mask
    require_tensor(op, "custom_mask_buf", bits, "bytes")
    if require_tensor(op, "mask_indptr_buf", starts, "batch_size + 1") != tuple(mask.indptr.shape):
        raise wrong_shape(op, "mask_indptr_buf", str(list(mask.indptr.shape)), list(starts.shape))
    # Allocates the worst case over all lengths. A smaller buffer may suffice, but only the device knows the lengths.
    count = min(bits.shape[0], mask.packed.shape[0])
    if count < mask.packed.shape[0] and count < int(mask.indptr[-1]):
        raise wrong_shape(op, "custom_mask_buf", f"{int(mask.indptr[-1])} bytes or more", list(bits.shape))
    bits[:count].copy_(mask.packed[:count])
    starts.copy_(mask.indptr)
    return Mask(bits, starts)
