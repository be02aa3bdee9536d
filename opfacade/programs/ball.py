"""Ball: a value of real arithmetic and how far a machine may be from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Ball(NamedTuple):
    """A value and its radius, both f64; of a truth 0 or 1, and 1 where it is undecided."""

    v: Tensor
    r: Tensor


def aligned(*tensors: Tensor) -> list[Tensor]:
    """Expanded to one shape."""
    import torch

    return list(torch.broadcast_tensors(*tensors))  # type: ignore[no-untyped-call]
