"""Checks whether two strided tensors share memory. Exact for views with equal shape and strides and for columns of one matrix,
conservative otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Distance in elements from the first to the last element, both included."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def self_overlaps(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """True unless each stride exceeds the span of all smaller strides, as in every ordinary view."""
    reach = 1
    for step, n in sorted((s, n) for n, s in zip(shape, stride, strict=True) if n > 1):
        if step < reach:
            return True
        reach = step * (n - 1) + reach
    return False


class Place(NamedTuple):
    """Layout of a tensor in memory. start: address of the first byte. item: bytes per element."""

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
    """Whether two tensors of one address space share memory."""
    if a.stop <= b.start or b.stop <= a.start or columns_apart(a, b):
        return False
    same_grid = tuple(a.shape) == tuple(b.shape) and a.stride == b.stride and a.item == b.item
    if not same_grid or self_overlaps(a.shape, a.stride):
        return True
    delta, rest = divmod(b.start - a.start, a.item)
    dims = sorted(((s, n) for n, s in zip(a.shape, a.stride, strict=True) if n > 1), reverse=True)
    return rest != 0 or _reachable(delta, dims)


def columns_apart(a: Place, b: Place) -> bool:
    """Whether both have the same row stride and use disjoint bytes of it, for any number of rows, like q and k of one qkv."""
    if not a.shape or not b.shape:
        return False
    step, span_a = a.stride[0] * a.item, extent(a.shape[1:], a.stride[1:]) * a.item
    if step <= 0 or step != b.stride[0] * b.item:
        return False
    offset = (b.start - a.start) % step
    return span_a <= offset and offset + extent(b.shape[1:], b.stride[1:]) * b.item <= step


def _reachable(delta: int, dims: Sequence[tuple[int, int]]) -> bool:
    """Whether delta is a sum of d_i * stride_i with |d_i| < n_i. For K and V interleaved in one buffer it is not."""
    if not dims:
        return delta == 0
    (step, n), rest = dims[0], dims[1:]
    span = sum((m - 1) * s for s, m in rest)
    low, high = -((span - delta) // step), (delta + span) // step
    return any(_reachable(delta - d * step, rest) for d in range(max(low, 1 - n), min(high, n - 1) + 1))
