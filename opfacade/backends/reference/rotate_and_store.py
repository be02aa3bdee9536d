"""Converts new rows to the cache's format: optionally rotated, divided by the scale, rounded once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from opfacade.core.dtypes import torch_dtype

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from opfacade.plans._attention.paging import PagePool


class AppendFields(Protocol):
    """The fields that determine how new rows are stored."""

    @property
    def copies(self) -> bool: ...
    @property
    def rotated(self) -> int: ...
    @property
    def quantises(self) -> bool: ...
    @property
    def rope(self) -> str: ...
    @property
    def paged_kv(self) -> PagePool: ...


class AppendCall(Protocol):
    """Tensors of an append call. k_new, v_new and cos_sin_cache are typed as present; check the descriptor before reading one
    that may be missing."""

    k_new: Tensor
    v_new: Tensor
    cos_sin_cache: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None


def stored_rows(descriptor: AppendFields, args: AppendCall, rows: slice, position: int) -> tuple[Tensor, Tensor]:
    """(K, V) of some new rows in the dtype of the cache; the first row has the given position in its request."""
    k, v = args.k_new[rows], args.v_new[rows]
    if descriptor.copies:
        return k, v
    angles = args.cos_sin_cache[position : position + k.shape[0]] if descriptor.rotated else None
    dtype = torch_dtype(descriptor.paged_kv.dtype)
    rotated = _wide(k) if angles is None else rotate(_wide(k), angles, descriptor.rope)
    values = v if not descriptor.quantises else _rounded(_unscaled(_wide(v), args.v_scale), dtype)
    return _rounded(_unscaled(rotated, args.k_scale), dtype), values


def _wide(x: Tensor) -> Tensor:
    """The rows, computed in a dtype whose roundoff is far below that of x."""
    import torch

    return x.to(torch.float64 if x.dtype == torch.float32 else torch.float32)


def rotate(x: Tensor, angles: Tensor, rope: str) -> Tensor:
    """x [rows, heads, dim] rotated in pairs by angles [rows, rotary_dim], cosines before sines; other elements are
    unchanged."""
    pairs = angles.shape[-1] // 2
    cos, sin = angles[:, None, :pairs].to(x.dtype), angles[:, None, pairs:].to(x.dtype)
    # Views, so that assignments write to `out`.
    out = x.clone()
    first, second = (out[..., : 2 * pairs : 2], out[..., 1 : 2 * pairs : 2])
    if rope == "half":
        first, second = out[..., :pairs], out[..., pairs : 2 * pairs]
    turned = first * cos - second * sin, second * cos + first * sin
    first.copy_(turned[0])
    second.copy_(turned[1])
    return out


def _unscaled(x: Tensor, scale: Tensor | None) -> Tensor:
    return x if scale is None else x / scale.to(x.dtype)[:, None]


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds to nearest; 8-bit formats saturate, and NaN stays NaN."""
    import torch

    if dtype.itemsize == 1:
        most = torch.finfo(dtype).max
        x = x.clamp(-most, most)
    return x.to(dtype)
