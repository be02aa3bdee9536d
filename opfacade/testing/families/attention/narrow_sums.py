"""Error bound of sums whose addends are truncated to some bits below the largest of a step, as in fp8 tensor cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def largest_in_steps(q: Tensor, k: Tensor, step: int) -> Tensor:
    """q [g, rows, d], k [g, n, d] -> [g, rows, n]: the sum over the steps of each dot product of an upper bound of the sums and
    products in the step."""
    import torch

    keys = k.transpose(1, 2)
    before = total = torch.zeros_like(q[..., :1] @ keys[:, :1])
    for first in range(0, q.shape[-1], step):
        mine, theirs = q[..., first : first + step], keys[:, first : first + step]
        after = before + mine @ theirs
        total = total + torch.maximum(mine.abs() @ theirs.abs(), torch.maximum(before.abs(), after.abs()))
        before = after
    return total
