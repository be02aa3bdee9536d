"""FlashInfer's rotary functions, which rotate the first rotary_dim elements of each head of q and k `[nnz, heads, head_dim]`,
with any strides. Pairs are (i, i + rotary_dim / 2), or with interleave adjacent elements. Arithmetic is f32, and results are
rounded once."""

from __future__ import annotations

import torch

from opfacade.compat.flashinfer._rotary.rope_quantize import mla_rope_quantize_fp8 as mla_rope_quantize_fp8
from opfacade.compat.flashinfer._rotary.rope_quantize import rope_quantize_fp8 as rope_quantize_fp8
from opfacade.compat.flashinfer._rotary.rope_quantize import (
    rope_quantize_fp8_append_paged_kv_cache as rope_quantize_fp8_append_paged_kv_cache,
)
from opfacade.compat.flashinfer._rotary.rotations import Angles, Heads, Waves, angles_at, angles_of_requests, rotated
from opfacade.compat.refusals import number, require_integer, require_tensor, truth, wrong, wrong_shape


def apply_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    indptr: torch.Tensor,
    offsets: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 1,
    rope_theta: float = 1e4,
) -> Heads:
    """Rotates q and k; row i of request b, which begins at row indptr[b], has the position offsets[b] + i - indptr[b].

    Frequencies are divided by rope_scale. Rows past indptr[-1] are not written.
    """
    op, waves = "apply_rope", _llama(rope_scale, rope_theta)
    angles = angles_of_requests(op, (indptr, offsets), *_sizes(op, q, rotary_dim), waves)
    return _new(op, (q, k), angles, interleave)


def apply_rope_inplace(
    q: torch.Tensor,
    k: torch.Tensor,
    indptr: torch.Tensor,
    offsets: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 1,
    rope_theta: float = 1e4,
) -> None:
    """As apply_rope, in place."""
    op, waves = "apply_rope_inplace", _llama(rope_scale, rope_theta)
    angles = angles_of_requests(op, (indptr, offsets), *_sizes(op, q, rotary_dim), waves)
    rotated(op, (q, k), None, angles, interleave)


def apply_llama31_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    indptr: torch.Tensor,
    offsets: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 8,
    rope_theta: float = 5e5,
    low_freq_factor: float = 1,
    high_freq_factor: float = 4,
    old_context_len: int = 8192,
) -> Heads:
    """As apply_rope, with the frequencies of Llama 3.1: low frequencies are divided by rope_scale, and high frequencies do not
    change."""
    op, waves = "apply_llama31_rope", _llama31(rope_scale, rope_theta, (low_freq_factor, high_freq_factor), old_context_len)
    angles = angles_of_requests(op, (indptr, offsets), *_sizes(op, q, rotary_dim), waves)
    return _new(op, (q, k), angles, interleave)


def apply_llama31_rope_inplace(
    q: torch.Tensor,
    k: torch.Tensor,
    indptr: torch.Tensor,
    offsets: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 8,
    rope_theta: float = 5e5,
    low_freq_factor: float = 1,
    high_freq_factor: float = 4,
    old_context_len: int = 8192,
) -> None:
    """As apply_llama31_rope, in place."""
    op, waves = (
        "apply_llama31_rope_inplace",
        _llama31(rope_scale, rope_theta, (low_freq_factor, high_freq_factor), old_context_len),
    )
    angles = angles_of_requests(op, (indptr, offsets), *_sizes(op, q, rotary_dim), waves)
    rotated(op, (q, k), None, angles, interleave)


def apply_rope_pos_ids(
    q: torch.Tensor,
    k: torch.Tensor,
    pos_ids: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 1,
    rope_theta: float = 1e4,
) -> Heads:
    """Rotates q and k by the positions pos_ids `[nnz]`, int32 or int64."""
    op, waves = "apply_rope_pos_ids", _llama(rope_scale, rope_theta)
    angles = angles_at(op, pos_ids, _sizes(op, q, rotary_dim)[1], waves)
    return _new(op, (q, k), angles, interleave)


def apply_rope_pos_ids_inplace(
    q: torch.Tensor,
    k: torch.Tensor,
    pos_ids: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 1,
    rope_theta: float = 1e4,
) -> None:
    """As apply_rope_pos_ids, in place."""
    op, waves = "apply_rope_pos_ids_inplace", _llama(rope_scale, rope_theta)
    angles = angles_at(op, pos_ids, _sizes(op, q, rotary_dim)[1], waves)
    rotated(op, (q, k), None, angles, interleave)


def apply_llama31_rope_pos_ids(
    q: torch.Tensor,
    k: torch.Tensor,
    pos_ids: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 8,
    rope_theta: float = 5e5,
    low_freq_factor: float = 1,
    high_freq_factor: float = 4,
    old_context_len: int = 8192,
) -> Heads:
    """As apply_rope_pos_ids, with the frequencies of apply_llama31_rope."""
    op, waves = (
        "apply_llama31_rope_pos_ids",
        _llama31(rope_scale, rope_theta, (low_freq_factor, high_freq_factor), old_context_len),
    )
    angles = angles_at(op, pos_ids, _sizes(op, q, rotary_dim)[1], waves)
    return _new(op, (q, k), angles, interleave)


def apply_llama31_rope_pos_ids_inplace(
    q: torch.Tensor,
    k: torch.Tensor,
    pos_ids: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 8,
    rope_theta: float = 5e5,
    low_freq_factor: float = 1,
    high_freq_factor: float = 4,
    old_context_len: int = 8192,
) -> None:
    """As apply_llama31_rope_pos_ids, in place."""
    op, waves = (
        "apply_llama31_rope_pos_ids_inplace",
        _llama31(rope_scale, rope_theta, (low_freq_factor, high_freq_factor), old_context_len),
    )
    angles = angles_at(op, pos_ids, _sizes(op, q, rotary_dim)[1], waves)
    rotated(op, (q, k), None, angles, interleave)


def apply_rope_with_cos_sin_cache(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool = True,
) -> Heads:
    """Rotates query and key `[nnz, heads * head_size]` by rows of cos_sin_cache `[max_positions, rotary_dim]`.

    A row has rotary_dim / 2 cosines, then as many sines. positions `[nnz]`, int32 or int64; a position after the end of the
    table uses the last row, and a row with a negative position is not written. Without is_neox, pairs are adjacent elements.
    """
    op = "apply_rope_with_cos_sin_cache"
    heads = (_heads(op, "query", query, head_size), _heads(op, "key", key, head_size))
    q, k = _new(op, heads, Angles(positions, cos_sin_cache), not truth(op, "is_neox", is_neox))
    return q.view(query.shape), k.view(key.shape)


def apply_rope_with_cos_sin_cache_inplace(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool = True,
) -> None:
    """As apply_rope_with_cos_sin_cache, in place; a row with a negative position is not changed."""
    op = "apply_rope_with_cos_sin_cache_inplace"
    heads = (_heads(op, "query", query, head_size), _heads(op, "key", key, head_size))
    rotated(op, heads, None, Angles(positions, cos_sin_cache), not truth(op, "is_neox", is_neox))


def _new(op: str, heads: Heads, angles: Angles, interleave: bool) -> Heads:
    for name, x in zip(("q", "k"), heads, strict=True):
        require_tensor(op, name, x, f"nnz, num_{name}_heads, head_dim")
    out = (torch.empty_like(heads[0]), torch.empty_like(heads[1]))
    rotated(op, heads, out, angles, interleave)
    return out


def _sizes(op: str, q: torch.Tensor, rotary_dim: int | None) -> tuple[int, int]:
    """nnz: the number of rows; rotary_dim: the rotated elements of a head."""
    rows, _, dim = require_tensor(op, "q", q, "nnz, num_qo_heads, head_dim")
    return rows, dim if rotary_dim is None else require_integer(op, "rotary_dim", rotary_dim)


def _llama(scale: float, theta: float) -> Waves:
    op = "apply_rope"
    return Waves("linear", number(op, "rope_theta", theta), (("factor", number(op, "rope_scale", scale)),))


def _llama31(scale: float, theta: float, factors: tuple[float, float], known: int) -> Waves:
    op = "apply_llama31_rope"
    names = ("low_freq_factor", "high_freq_factor", "old_context_len")
    low, high, length = (number(op, name, value) for name, value in zip(names, (*factors, known), strict=True))
    more = (("low_freq_factor", low), ("high_freq_factor", high), ("original_max_position_embeddings", length))
    return Waves("llama3", number(op, "rope_theta", theta), (("factor", number(op, "rope_scale", scale)), *more))


def _heads(op: str, name: str, x: torch.Tensor, head_size: int) -> torch.Tensor:
    """x `[nnz, heads * head_size]`, or already `[nnz, heads, head_size]`, as heads: a view."""
    if isinstance(x, torch.Tensor) and x.dim() == 3 and x.shape[2] == head_size:
        return x
    if require_integer(op, "head_size", head_size) < 1:
        raise wrong(op, "head_size", "1 or more", head_size)
    if require_tensor(op, name, x, "nnz, heads * head_size")[1] % head_size:
        raise wrong_shape(op, name, f"[nnz, heads * {head_size}]", list(x.shape))
    heads: torch.Tensor = x.unflatten(1, (-1, head_size))  # type: ignore[no-untyped-call]
    return heads
