"""flash-attn's functions of packed tensors, where Q, K and V are views of one tensor."""

from __future__ import annotations

from typing import Any

import torch

from opfacade.compat.flash_attn.dense import flash_attn_func
from opfacade.compat.flash_attn.varlen import flash_attn_varlen_func
from opfacade.compat.refusals import require_tensor, wrong_shape

_SHARED = (
    "dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic", "return_attn_probs",
)  # fmt: skip


def _shared(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that all functions share."""
    return {name: arguments[name] for name in _SHARED}


def _unpacked(op: str, name: str, packed: torch.Tensor, dims: str, count: int) -> tuple[torch.Tensor, ...]:
    """The `count` tensors along the third axis from the right."""
    if require_tensor(op, name, packed, dims)[-3] != count:
        raise wrong_shape(op, name, f"[{dims}]", list(packed.shape))
    return packed.unbind(-3)


def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func of qkv `[batch, seqlen, 3, nheads, headdim]`."""
    given = _shared(locals())
    q, k, v = _unpacked("flash_attn_qkvpacked_func", "qkv", qkv, "batch_size, seqlen, 3, nheads, headdim", 3)
    return flash_attn_func(q, k, v, **given)


def flash_attn_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func of kv `[batch, seqlen, 2, nheads_k, headdim]`."""
    given = _shared(locals())
    k, v = _unpacked("flash_attn_kvpacked_func", "kv", kv, "batch_size, seqlen, 2, nheads_k, headdim", 2)
    return flash_attn_func(q, k, v, **given)


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_varlen_func of qkv `[total, 3, nheads, headdim]`."""
    given = _shared(locals())
    q, k, v = _unpacked("flash_attn_varlen_qkvpacked_func", "qkv", qkv, "total, 3, nheads, headdim", 3)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, **given)


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_varlen_func of kv `[total_k, 2, nheads_k, headdim]`."""
    given = _shared(locals())
    k, v = _unpacked("flash_attn_varlen_kvpacked_func", "kv", kv, "total_k, 2, nheads_k, headdim", 2)
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **given)
