"""Minimum, maximum, mean and number of NaN of a call's tensors. Works in chunks, so no tensor is copied as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from opfacade.observe import call_pages

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Descriptor


def of_call(
    descriptor: Descriptor[Any], tensors: Mapping[str, Tensor], found: call_pages.Pages | None
) -> dict[str, dict[str, Any]]:
    """The statistics of each tensor; for a pool, of the tokens that the page table references. Waits for the device."""
    paged = call_pages.axes(descriptor) if found is not None else {}
    return {
        name: statistics(call_pages.blocks(tensor, paged[name], found) if found and name in paged else (tensor,))
        for name, tensor in tensors.items()
    }


def statistics(parts: Iterable[Tensor]) -> dict[str, Any]:
    """The combined statistics of all parts: min, max and mean of the values that are not NaN, and the number of NaN. Empty if
    the parts have no elements."""
    elements, nan, total, least, most = 0, 0.0, 0.0, math.inf, -math.inf
    for piece in (piece for part in parts for piece in pieces(part)):
        elements += piece.numel()
        more, low, high, added = _of_piece(piece)
        nan, total, least, most = nan + more, total + added, min(least, low), max(most, high)
    if not elements:
        return {}
    sound = elements - int(nan)
    return {"nan": int(nan)} | ({"min": least, "max": most, "mean": total / sound} if sound else {})


def _of_piece(piece: Tensor) -> tuple[float, float, float, float]:
    """Number of NaN, minimum, maximum and sum in float64; synchronises once."""
    import torch

    values = piece.double()
    wrong = values.isnan()
    low, high = values.masked_fill(wrong, math.inf).min(), values.masked_fill(wrong, -math.inf).max()
    found = torch.stack([wrong.sum().double(), low, high, values.masked_fill(wrong, 0.0).sum()])
    nan, least, most, total = found.tolist()
    return nan, least, most, total


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Views that together contain all elements of a tensor, each with at most one chunk of elements."""
    if not tensor.numel():
        return
    if tensor.numel() <= call_pages.CHUNK:
        yield tensor
        return
    axis = max(range(tensor.dim()), key=lambda i: tensor.shape[i])
    step = max(1, call_pages.CHUNK * tensor.shape[axis] // tensor.numel())
    for first in range(0, tensor.shape[axis], step):
        yield from pieces(tensor.narrow(axis, first, min(step, tensor.shape[axis] - first)))
