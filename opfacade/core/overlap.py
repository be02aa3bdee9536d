"""Do two strided tensors share an element? Exact for views of one shape and stride and for columns of one matrix, conservative
otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

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


class Place(NamedTuple):
    """Where a tensor lies: first byte, bytes of an element."""

    shape: Sequence[int]
    stride: Sequence[int]
    start: int
    item: int

    @property
    def stop(self) -> int:
        return self.start + extent(self.shape, self.stride) * self.item


def overlaps(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.device == b.device and places_overlap(_place(a), _place(b))


def _place(t: torch.Tensor) -> Place:
    return Place(t.shape, t.stride(), t.data_ptr(), t.element_size())


def places_overlap(a: Place, b: Place) -> bool:
    """Do two tensors of one address space share an element?"""
    if a.stop <= b.start or b.stop <= a.start or columns_apart(a, b):
        return False
    same_grid = tuple(a.shape) == tuple(b.shape) and a.stride == b.stride and a.item == b.item
    if not same_grid or self_overlaps(a.shape, a.stride):
        return True
    delta, rest = divmod(b.start - a.start, a.item)
    dims = sorted(((s, n) for n, s in zip(a.shape, a.stride, strict=True) if n > 1), reverse=True)
    return rest != 0 or _reachable(delta, dims)


def columns_apart(a: Place, b: Place) -> bool:
    """Are they rows at one stride, of which each has bytes of its own, however many rows? Such are q and k of one qkv."""
    if not a.shape or not b.shape:
        return False
    step, span_a = a.stride[0] * a.item, extent(a.shape[1:], a.stride[1:]) * a.item
    if step <= 0 or step != b.stride[0] * b.item:
        return False
    offset = (b.start - a.start) % step
    return span_a <= offset and offset + extent(b.shape[1:], b.stride[1:]) * b.item <= step


def _reachable(delta: int, dims: Sequence[tuple[int, int]]) -> bool:
    """Is delta a sum of d_i * stride_i with |d_i| < n_i? K and V interleaved in one buffer differ by none."""
    if not dims:
        return delta == 0
    (step, n), rest = dims[0], dims[1:]
    span = sum((m - 1) * s for s, m in rest)
    low, high = -((span - delta) // step), (delta + span) // step
    return any(_reachable(delta - d * step, rest) for d in range(max(low, 1 - n), min(high, n - 1) + 1))
