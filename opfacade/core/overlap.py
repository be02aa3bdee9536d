"""Do two strided tensors share an element? Exact for views of one shape and stride and for columns of one matrix, conservative
otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last one touched, both included."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def self_overlaps(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """True unless every stride steps over all that the smaller ones span, which no ordinary view violates."""
    reach = 1
    for step, n in sorted((s, n) for n, s in zip(shape, stride, strict=True) if n > 1):
        if step < reach:
            return True
        reach = step * (n - 1) + reach
    return False


def overlaps(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.device != b.device:
        return False
    size_a, size_b = a.element_size(), b.element_size()
    start_a, start_b = a.data_ptr(), b.data_ptr()
    apart = (
        start_a + extent(a.shape, a.stride()) * size_a <= start_b or start_b + extent(b.shape, b.stride()) * size_b <= start_a
    )
    if apart or _columns_apart(a, b):
        return False
    same_grid = a.shape == b.shape and a.stride() == b.stride() and size_a == size_b
    if not same_grid or self_overlaps(a.shape, a.stride()):
        return True
    delta, rest = divmod(start_b - start_a, size_a)
    dims = sorted(((s, n) for n, s in zip(a.shape, a.stride(), strict=True) if n > 1), reverse=True)
    return rest != 0 or _reachable(delta, dims)


def _columns_apart(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Are they rows at one stride, of which each has bytes of its own? Such are q and k of one qkv."""
    if a.dim() == 0 or b.dim() == 0:
        return False
    step, span_a = a.stride(0) * a.element_size(), extent(a.shape[1:], a.stride()[1:]) * a.element_size()
    if step <= 0 or step != b.stride(0) * b.element_size():
        return False
    offset = (b.data_ptr() - a.data_ptr()) % step
    return span_a <= offset and offset + extent(b.shape[1:], b.stride()[1:]) * b.element_size() <= step


def _reachable(delta: int, dims: Sequence[tuple[int, int]]) -> bool:
    """Is delta a sum of d_i * stride_i with |d_i| < n_i? K and V interleaved in one buffer differ by none."""
    if not dims:
        return delta == 0
    (step, n), rest = dims[0], dims[1:]
    span = sum((m - 1) * s for s, m in rest)
    low, high = -((span - delta) // step), (delta + span) // step
    return any(_reachable(delta - d * step, rest) for d in range(max(low, 1 - n), min(high, n - 1) + 1))
