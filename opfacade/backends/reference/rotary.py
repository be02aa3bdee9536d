"""Rotation in torch: f32 products and sums, each rounded, as every backend computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.backends.reference.declared import reference
from opfacade.core.dtypes import torch_dtype
from opfacade.core.guarantee import EXACT, ErrorModel, PrecisionGuarantee
from opfacade.plans.rotary import RotaryDescriptor

if TYPE_CHECKING:
    from torch import Tensor

_PROMISE = PrecisionGuarantee(math_precision="f32_rounded_once", accumulator="none", error_model=ErrorModel(id=EXACT))


def _run(descriptor: RotaryDescriptor, args: Any) -> None:
    at, rows = _positions(descriptor, args)
    cos, sin = _angles(descriptor, args.cos_sin_cache, at)
    for name, out in descriptor.written(args).items():
        given = getattr(args, name)[rows]
        out[rows] = _rotated(descriptor, given, cos, sin)


def _positions(descriptor: RotaryDescriptor, args: Any) -> tuple[Tensor, Tensor]:
    """(positions [groups, n], the n rows that are rotated)."""
    import torch

    positions = args.positions.view(descriptor.groups, descriptor.total_num_rows).long()
    chosen = (positions >= 0).all(0) & (args.cos_sin_cache.shape[0] > 0)
    if args.num_valid is not None:
        count = int(args.num_valid[0])
        valid = count if 0 <= count <= descriptor.total_num_rows else 0
        chosen &= torch.arange(descriptor.total_num_rows, device=positions.device) < valid
    rows = chosen.nonzero()[:, 0]
    return positions[:, rows].clamp(max=args.cos_sin_cache.shape[0] - 1), rows


def _angles(descriptor: RotaryDescriptor, table: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [n, 1, rotary_dim / 2], f32."""
    import torch

    half = descriptor.rotary_dim // 2
    group = torch.tensor([descriptor.section_of(pair) for pair in range(half)], device=table.device)
    row, pair = at[group].T, torch.arange(half, device=table.device)
    cos, sin = (table[row, pair + column].float()[:, None] for column in (0, half))
    return cos, -sin if descriptor.inverse else sin


def _rotated(descriptor: RotaryDescriptor, given: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, last = descriptor.rotary_offset, descriptor.rotary_offset + descriptor.rotary_dim
    out, half = given.clone(), descriptor.rotary_dim // 2
    x = out[..., first:last]
    a, b = (x[..., 0::2], x[..., 1::2]) if descriptor.interleaved else (x[..., :half], x[..., half:])
    wide_a, wide_b = a.float(), b.float()
    made = wide_a * cos - wide_b * sin, wide_b * cos + wide_a * sin
    for view, value in zip((a, b), made, strict=True):
        view.copy_(value.to(torch_dtype(descriptor.dtype)))
    return out


CANDIDATES = (reference(RotaryDescriptor, lambda descriptor: _PROMISE, lambda descriptor: (("x", descriptor.dtype),), _run),)
