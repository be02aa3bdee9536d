"""FlashInfer's forms of a paged cache: one tensor with K and V, a pair of tensors, and pages of one token without a page
axis."""

from __future__ import annotations

import torch

from opfacade.compat.attending import Pools
from opfacade.compat.refusals import require_dense, unmapped, wrong_shape, wrong_type

Cache = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def pools_of(op: str, cache: Cache, layout: str) -> Pools:
    """K and V [pages, ...], from one tensor `[pages, 2, ...]` or from a pair."""
    if isinstance(cache, torch.Tensor):
        if cache.dim() not in (4, 5) or cache.shape[1] != 2:
            raise wrong_shape(op, "paged_kv_cache", "[pages, 2, ...], or a pair of tensors", list(cache.shape))
        k, v = cache.unbind(1)
    else:
        k, v = _pair(op, cache)
    if k.dtype == torch.uint8:
        raise unmapped(op, "paged_kv_cache", "16-bit, f32 or fp8 elements", "4-bit elements in bytes")
    axis = 1 if layout == "NHD" else 2
    k, v = (x.unsqueeze(axis) if x.dim() == 3 else x for x in (k, v))
    for name, x in (("k", k), ("v", v)):
        if x.dim() != 4:
            raise wrong_shape(op, f"paged_kv_cache ({name})", "4 dimensions", list(x.shape))
    return Pools(k, v, layout)


def _pair(op: str, cache: object) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(cache, (tuple, list)) or len(cache) != 2:
        got = f"{len(cache)} of them" if isinstance(cache, (tuple, list)) else type(cache).__name__
        raise wrong_type(op, "paged_kv_cache", "a tensor [pages, 2, ...], or a pair of tensors", got)
    k, v = cache
    if not (isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor)):
        for name, x in (("k", k), ("v", v)):
            require_dense(op, f"paged_kv_cache ({name})", x, "pages, ...")
    return k, v


def require_pages(op: str, pools: Pools, page_size: int, heads: int) -> None:
    """Checks that the cache agrees with the arguments of plan()."""
    _, tokens, kv_heads, dim = pools.facts
    if (tokens, kv_heads) != (page_size, heads):
        expected = f"{page_size} tokens of {heads} heads a page, in layout {pools.layout}"
        raise wrong_shape(op, "paged_kv_cache", expected, list(pools.k.shape))
    if pools.v.shape[-1] != dim:
        raise unmapped(op, "head_dim_vo", f"{dim}, the size of K in the pages", pools.v.shape[-1])


def require_page_size(op: str, pools: tuple[torch.Tensor, torch.Tensor], page_size: int, layout: str) -> None:
    """pools `[pages, page_size, ...]`, or with HND `[pages, heads, page_size, ...]`."""
    axis = 1 if layout == "NHD" else 2
    for pool in pools:
        if pool.dim() <= axis or pool.shape[axis] != page_size:
            raise wrong_shape(op, "paged_kv_cache", f"{page_size} tokens per page, in layout {layout}", list(pool.shape))
