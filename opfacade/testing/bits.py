"""Bits of tensors, compared as they lie in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def bits(tensor: Tensor) -> Tensor:
    """The memory as integers, so that NaN equals itself and -0 is not 0."""
    import torch

    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])


def same_bits(a: Tensor, b: Tensor) -> bool:
    import torch

    return torch.equal(bits(a), bits(b))
