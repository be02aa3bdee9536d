"""Ball: a value of real arithmetic and a bound on the error of the computed value."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Ball(NamedTuple):
    """A value and its radius, both f64. For a bool: the value is 0 or 1, and the radius is 1 if it is undecided."""

    v: Tensor
    r: Tensor


def aligned(*tensors: Tensor) -> list[Tensor]:
    """The tensors expanded to one shape."""
    import torch

    return list(torch.broadcast_tensors(*tensors))  # type: ignore[no-untyped-call]
