"""Checks the buffers and scales of each layer when the server starts, before its first step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from torch import Tensor

from opfacade.integrations.refusal import refuse
from opfacade.integrations.tensors import name_of

if TYPE_CHECKING:
    from opfacade.integrations.sglang.parts import AttentionLayer, KvPool

WAY = "sglang"


def refuse_buffers(pool: KvPool, layer: AttentionLayer, page_size: int) -> None:
    """Raises UnsupportedError (OPF-I001) unless K and V of a layer are rows of tokens [tokens, heads, dim] or pages in HND
    layout [pages, heads, page_size, dim], and each scale of an fp8 cache is one number."""
    k, v = pool.get_kv_buffer(layer.layer_id)
    first = "hnd" if k.ndim == 4 else "nhd"
    layout = getattr(pool, "kv_cache_layout", first)
    wanted = f"[pages, heads, {page_size}, {layer.qk_head_dim}]" if layout == "hnd" else f"[tokens, heads, {layer.qk_head_dim}]"
    if layout != first or not _fits(k, layer, page_size):
        _refuse(layer, "k_buffer", f"{layout} {wanted}", list(k.shape))
    if v.shape != k.shape or v.dtype != k.dtype:
        _refuse(layer, "v_buffer", f"{list(k.shape)} of {k.dtype}", f"{list(v.shape)} of {v.dtype}")
    if name_of(k.dtype) is None:
        _refuse(layer, "kv_cache_dtype", "16 bits or fp8", k.dtype)
    if k.dtype.itemsize == 1 and layer.k_scale is not None:
        for name, factor in (("k_scale", layer.k_scale), ("v_scale", layer.v_scale)):
            if not isinstance(factor, Tensor) or factor.numel() != 1:
                _refuse(layer, name, "a tensor of one number", getattr(factor, "shape", factor))


def _fits(buffer: Tensor, layer: AttentionLayer, page_size: int) -> bool:
    if buffer.ndim not in (3, 4) or buffer.shape[-1] != layer.qk_head_dim or layer.tp_q_head_num % buffer.shape[1]:
        return False
    return buffer.shape[2] == page_size if buffer.ndim == 4 else buffer.shape[0] % page_size == 0


def _refuse(layer: AttentionLayer, name: str, expected: str, got: object) -> NoReturn:
    refuse(
        WAY, "OPF-I001", name, expected=f"{expected} in layer {layer.layer_id}", got=got, hint="Choose another backend for it."
    )
