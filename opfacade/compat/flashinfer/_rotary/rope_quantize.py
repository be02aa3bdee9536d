"""FlashInfer's rotations to fp8, also with an append to a paged cache: rotated and scaled in f32, rounded once, saturating.
Each tensor takes one launch. A row with a negative position is scaled but not rotated. `enable_pdl` and `backend` have no
effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from opfacade.compat.dtypes import FP8
from opfacade.compat.flashinfer._attention.caches import require_page_size
from opfacade.compat.flashinfer._rotary.fp8_heads import Rotation, scaled
from opfacade.compat.flashinfer.page import append_paged_kv_cache, append_paged_mla_kv_cache
from opfacade.compat.refusals import require_tensor, truth, unmapped, wrong

Tensor = torch.Tensor
BACKENDS = ("cuda", "cutile")


def rope_quantize_fp8(
    q_rope: Tensor,
    k_rope: Tensor,
    q_nope: Tensor | None,
    k_nope: Tensor | None,
    cos_sin_cache: Tensor,
    pos_ids: Tensor,
    is_neox: bool = True,
    quantize_dtype: torch.dtype | None = None,
    quant_scale_q: float = 1.0,
    quant_scale_kv: float = 1.0,
    q_rope_out: Tensor | None = None,
    k_rope_out: Tensor | None = None,
    q_nope_out: Tensor | None = None,
    k_nope_out: Tensor | None = None,
    enable_pdl: bool = False,
    backend: str = "cuda",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns q_rope and k_rope (rotated) and q_nope and k_nope (not rotated), multiplied by quant_scale_q and quant_scale_kv,
    in fp8.

    q_rope `[nnz, heads, rope_dim]`; k_rope the same with its own number of heads, or `[nnz, rope_dim]`; q_nope and k_nope
    likewise, with any width. cos_sin_cache `[max_positions, rope_dim]`: cosines, then sines. The result is in the order q_rope,
    k_rope, q_nope, k_nope."""
    op = "rope_quantize_fp8"
    if backend not in BACKENDS:
        raise wrong(op, "backend", " or ".join(map(repr, BACKENDS)), repr(backend))
    outs = (q_rope_out, k_rope_out, q_nope_out, k_nope_out)
    dtype, rotation = _dtype(op, quantize_dtype, outs), Rotation(op, cos_sin_cache, pos_ids, not truth(op, "is_neox", is_neox))
    q = _Pair(q_rope, _or_empty(q_nope, q_rope)).scaled(rotation, quant_scale_q, _Outs(dtype, q_rope_out, q_nope_out))
    k = _Pair(k_rope, _or_empty(k_nope, k_rope)).scaled(rotation, quant_scale_kv, _Outs(dtype, k_rope_out, k_nope_out))
    return q.rope, k.rope, q.nope, k.nope


def mla_rope_quantize_fp8(
    q_rope: Tensor,
    k_rope: Tensor,
    q_nope: Tensor,
    k_nope: Tensor,
    cos_sin_cache: Tensor,
    pos_ids: Tensor,
    is_neox: bool = True,
    quantize_dtype: torch.dtype | None = None,
    quant_scale_q: float = 1.0,
    quant_scale_kv: float = 1.0,
    q_rope_out: Tensor | None = None,
    k_rope_out: Tensor | None = None,
    q_nope_out: Tensor | None = None,
    k_nope_out: Tensor | None = None,
    enable_pdl: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same as rope_quantize_fp8."""
    scales, outs = (quant_scale_q, quant_scale_kv), (q_rope_out, k_rope_out, q_nope_out, k_nope_out)
    return rope_quantize_fp8(
        q_rope, k_rope, q_nope, k_nope, cos_sin_cache, pos_ids, is_neox, quantize_dtype, *scales, *outs, enable_pdl
    )


def rope_quantize_fp8_append_paged_kv_cache(
    q_rope: Tensor,
    k_rope: Tensor,
    q_nope: Tensor | None,
    k_nope: Tensor | None,
    v: Tensor | None,
    cos_sin_cache: Tensor,
    pos_ids: Tensor,
    paged_kv_cache: tuple[Tensor, Tensor],
    kv_indices: Tensor,
    kv_indptr: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    is_neox: bool = True,
    quantize_dtype: torch.dtype | None = None,
    quant_scale_q: float = 1.0,
    quant_scale_kv: float = 1.0,
    page_size: int = 16,
    kv_layout: str = "NHD",
    q_rope_out: Tensor | None = None,
    q_nope_out: Tensor | None = None,
    enable_pdl: bool = False,
) -> tuple[Tensor, Tensor]:
    """As rope_quantize_fp8, but returns only q_rope and q_nope, and appends k and v as append_paged_kv_cache does.

    k_rope `[nnz, heads, rope_dim]`: a key is its rotated part, then k_nope, and paged_kv_cache the pools of K and V. k_rope
    `[nnz, rope_dim]`: v is None, and paged_kv_cache the latent pools `[pages, page_size, width]` of k_nope and of k_rope.
    """
    op = "rope_quantize_fp8_append_paged_kv_cache"
    latent = isinstance(k_rope, Tensor) and k_rope.dim() == 2
    if latent != (v is None):
        raise wrong(
            op, "v", "None with k_rope [nnz, rope_dim]" if latent else "a tensor with k_rope of heads", type(v).__name__
        )
    dtype, rotation = (
        _dtype(op, quantize_dtype, (q_rope_out, q_nope_out)),
        Rotation(op, cos_sin_cache, pos_ids, not truth(op, "is_neox", is_neox)),
    )
    require_page_size(op, paged_kv_cache, page_size, "NHD" if latent else kv_layout)
    q = _Pair(q_rope, _or_empty(q_nope, q_rope)).scaled(rotation, quant_scale_q, _Outs(dtype, q_rope_out, q_nope_out))
    rows = (batch_indices.int(), positions.int())
    pages = (kv_indices.int(), kv_indptr.int(), kv_indptr[1:])
    key = _Pair(k_rope, _or_empty(k_nope, k_rope))
    if v is None:
        k = key.scaled(rotation, quant_scale_kv, _Outs(dtype))
        append_paged_mla_kv_cache(k.nope, k.rope, *rows, *paged_kv_cache, *pages)
    else:
        values = scaled(op, v, torch.empty_like(v, dtype=dtype), quant_scale_kv)
        append_paged_kv_cache(key.joined(rotation, quant_scale_kv, dtype), values, *rows, paged_kv_cache, *pages, kv_layout)
    return q.rope, q.nope


class _Outs(NamedTuple):
    dtype: torch.dtype
    rope: Tensor | None = None
    nope: Tensor | None = None


class _Pair(NamedTuple):
    """The part of q or k that is rotated, and the rest."""

    rope: Tensor
    nope: Tensor

    def scaled(self, rotation: Rotation, scale: float, outs: _Outs) -> _Pair:
        """Both parts in fp8, in separate tensors."""
        rope, nope = (
            torch.empty_like(x, dtype=outs.dtype) if out is None else out
            for x, out in zip(self, (outs.rope, outs.nope), strict=True)
        )
        return _Pair(scaled(rotation.op, self.rope, rope, scale, rotation), scaled(rotation.op, self.nope, nope, scale))

    def joined(self, rotation: Rotation, scale: float, dtype: torch.dtype) -> Tensor:
        """Both parts in one tensor, `[nnz, heads, rope_dim + width]`."""
        rows, heads, width = require_tensor(rotation.op, "k_rope", self.rope, "nnz, num_kv_heads, rope_dim")
        whole = torch.empty(rows, heads, width + self.nope.shape[-1], dtype=dtype, device=self.rope.device)
        scaled(rotation.op, self.rope, whole[..., :width], scale, rotation)
        scaled(rotation.op, self.nope, whole[..., width:], scale)
        return whole


def _or_empty(nope: Tensor | None, rope: Tensor) -> Tensor:
    return rope.new_empty(*rope.shape[:-1], 0) if nope is None else nope


def _dtype(op: str, given: torch.dtype | None, outs: Sequence[Tensor | None]) -> torch.dtype:
    """The fp8 dtype: the argument, otherwise the dtype of the first passed output, otherwise e4m3."""
    found = given or next((out.dtype for out in outs if out is not None), torch.float8_e4m3fn)
    if found not in FP8:
        raise unmapped(op, "quantize_dtype", " or ".join(map(str, FP8)), found)
    return found
