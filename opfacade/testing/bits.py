"""Compares bits of tensors, and draws and fills elements of any type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def bits(tensor: Tensor) -> Tensor:
    """A view as integers, so that NaN equals itself and -0 differs from 0."""
    import torch

    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])


def fill(tensor: Tensor, value: float) -> Tensor:
    """Fill in place with the nearest value of the type. In integers, NaN and infinities become all bits set; in bool, an
    invalid value."""
    import torch

    if tensor.is_floating_point():
        return tensor.copy_(torch.full((), value, dtype=torch.float64).to(tensor.dtype))
    if math.isfinite(value):
        return tensor.fill_(value)
    tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]).fill_(-1)
    return tensor


def drawn(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Random elements on the generator's device: normally distributed for float types, otherwise any value of the type."""
    import torch

    device = generator.device
    if dtype.is_floating_point:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return torch.randn(shape, generator=generator, dtype=wide, device=device).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator, device=device).bool()
    size = math.prod(shape) * dtype.itemsize
    return torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8, device=device).view(dtype).view(shape)


def same_bits(a: Tensor, b: Tensor) -> bool:
    import torch

    return torch.equal(bits(a), bits(b))
