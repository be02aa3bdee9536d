"""Tensors of any rank as rows `[rows, width]`, and in-place outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from opfacade.compat.refusals import require_tensor, wrong_shape


def flat_rows(x: torch.Tensor) -> torch.Tensor:
    """x `[..., width]` as `[rows, width]`: a view, or a copy if the rows have no common stride."""
    return x.unsqueeze(0) if x.dim() == 1 else x.flatten(0, -2)


def require_out(op: str, out: object, shape: Sequence[int]) -> None:
    """Raises unless out is a tensor with this shape."""
    told = ", ".join(map(str, shape))
    if require_tensor(op, "out", out, told) != tuple(shape):
        raise wrong_shape(op, "out", f"[{told}]", list(out.shape))  # type: ignore[attr-defined]


def same_memory(x: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether out and x are the same elements. Plans have a field in_place for this, and refuse other overlaps."""
    return out.data_ptr() == x.data_ptr() and out.stride() == x.stride() and out.dtype == x.dtype and out.numel() > 0


def stored(made: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Returns out. If `made` is not already stored in out, it is copied to out."""
    return out if made.data_ptr() == out.data_ptr() else out.copy_(made.view(out.shape))
