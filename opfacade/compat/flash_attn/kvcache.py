"""flash_attn_with_kvcache: writes new rows to the cache in place, and computes attention over the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from opfacade.compat.appending import New, appended
from opfacade.compat.attending import Ask, Call, Pools, Table
from opfacade.compat.constants import even_indptr, filled, numbered
from opfacade.compat.flash_attn.blocks import blocks
from opfacade.compat.flash_attn.cached import attention_calls
from opfacade.compat.flash_attn.descales import factors
from opfacade.compat.flash_attn.meaning import Meaning, kv_split, lse_of_rows, meaning_of, truth
from opfacade.compat.flash_attn.rotary import Rotary, check_positions, check_query, rotary_of, rotated
from opfacade.compat.refusals import (
    refuse_gradients,
    refuse_unless,
    require_int32,
    require_integer,
    require_tensor,
    unmapped,
    wrong,
    wrong_shape,
)

_NEW = "batch_size, seqlen_new, nheads_k, headdim"
_OP = "flash_attn_with_kvcache"


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    qv: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    attention_chunk: int = 0,
    scheduler_metadata: torch.Tensor | None = None,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    s_aux: torch.Tensor | None = None,
) -> Any:
    """Attention of q `[batch, seqlen, nheads, headdim]` over a cache, to which k and v are written first.

    k_cache, v_cache: `[batch_cache, seqlen_cache, nheads_k, headdim]`, where request b has row cache_batch_idx[b] or b; or,
    with block_table (page_table) `[batch, max_blocks]` i32, pages `[num_blocks, block_size, nheads_k, headdim]` of any size.
    cache_seqlens: an int or `[batch]` i32, the number of tokens before the new ones; None means a full cache. k, v: `[batch,
    seqlen_new, nheads_k, headdim]`, written from position cache_seqlens on. rotary_cos, rotary_sin: `[positions, rotary_dim /
    2]`; K is rotated by the angles of its positions; Q also with causal or a window, otherwise by the angles of cache_seqlens.
    cache_leftpad: `[batch]` i32, the first visible position of each request. k_descale, v_descale, q_descale: scales of fp8
    tensors, one or one per KV head, expanded over the batch; 16-bit k and v are divided by their scales. Other arguments are as
    in flash_attn_func. Returns out like q, and with return_softmax_lse lse `[batch, nheads, seqlen]` f32. All arguments are
    checked before the cache is written."""
    batch, rows, heads, _ = require_tensor(_OP, "q", q, "batch_size, seqlen, nheads, headdim")
    refuse_gradients(_OP, {"q": q, "k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v})
    unknown = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k_new": cu_seqlens_k_new, "rotary_seqlens": rotary_seqlens}
    refuse_unless(_OP, {name: (value, None) for name, value in unknown.items()})
    meaning = meaning_of(_OP, heads, batch, locals())
    pools = _pools(k_cache, v_cache, page_grows=block_table is None and page_table is None)
    places = {"block_table": block_table, "page_table": page_table, "cache_batch_idx": cache_batch_idx}
    table = _table(batch, k_cache, places, cache_seqlens)
    with_lse = truth(_OP, "return_softmax_lse", return_softmax_lse)
    interleaved = truth(_OP, "rotary_interleaved", rotary_interleaved)
    rotary = rotary_of(_OP, rotary_cos, rotary_sin, interleaved, k_cache.device)
    ask = Ask(_OP, meaning.scores, meaning.sm_scale, kv_split(_OP, num_splits, table.max_len or 1), with_lse)
    ask = factors(ask, q, k_cache, {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale})
    calls = []
    if k is not None and v is not None and cache_seqlens is not None:
        first, new = table.operands["kv_lens"], _rows_of_requests(k, v, batch)
        table = _longer(table, new)
        calls.append(_append((k, v), pools, table, rotary, ask))
        calls[0].check()
        if rotary is not None:
            check_query(_OP, q, k_cache)
            moves = _turns_on(meaning)
            check_positions(_OP, rotary, cache_seqlens, max(new, rows if moves else min(rows, 1)))
            q = rotated(q, rotary, _positions(first, rows, moves))
    else:
        _refuse_half_append(k, v, rotary, cache_seqlens)
    attentions = attention_calls(meaning, ask, q, pools, table, cache_leftpad)
    for call in attentions:
        call.check()
    for call in (*calls, *attentions):
        call.plan.run(call.args)
    out = _joined([call.args.o for call in attentions]).view(batch, rows, heads, v_cache.shape[-1])
    return (out, lse_of_rows(_joined([call.args.lse for call in attentions]), batch, rows)) if with_lse else out


def _pools(k_cache: torch.Tensor, v_cache: torch.Tensor, page_grows: bool) -> Pools:
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        require_tensor(_OP, name, cache, "batch_size, seqlen_cache, nheads_k, headdim")
    return Pools(k_cache, v_cache, "NHD", page_grows)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _table(
    batch: int,
    k_cache: torch.Tensor,
    places: Mapping[str, torch.Tensor | None],
    cache_seqlens: int | torch.Tensor | None,
) -> Table:
    """The pages of each request and its number of tokens before the new ones. Without a block table, a cache row is a page."""
    for name, place in places.items():
        dims = "batch_size" if name == "cache_batch_idx" else "batch_size, max_blocks"
        if place is not None and require_tensor(_OP, name, place, dims)[0] != batch:
            raise wrong_shape(_OP, name, f"[{dims.replace('batch_size', f'batch_size={batch}')}]", list(place.shape))
    block_table, rows = places["block_table"], places["cache_batch_idx"]
    if block_table is None:
        block_table = places["page_table"]
    elif places["page_table"] is not None:
        raise wrong(_OP, "page_table", "None with block_table, because both are names of the same argument", "both")
    device = k_cache.device
    if block_table is not None and rows is not None:
        raise unmapped(_OP, "cache_batch_idx", "None beside block_table", f"a tensor {list(rows.shape)}")
    if block_table is None:
        block_table = (numbered(batch, device) if rows is None else rows)[:, None]
    capacity = block_table.shape[-1] * k_cache.shape[1]
    lengths = capacity if cache_seqlens is None else cache_seqlens
    if isinstance(lengths, int):
        if not 0 <= require_integer(_OP, "cache_seqlens", lengths) <= capacity:
            raise wrong(_OP, "cache_seqlens", f"0 to {capacity} tokens, the capacity of a row of the cache", lengths)
        lengths = filled(batch, lengths, device)
    require_int32(_OP, "cache_seqlens", lengths, "batch_size")
    return blocks(_OP, k_cache, block_table, lengths)


def _longer(table: Table, rows: int) -> Table:
    """The page table with the new rows of each request."""
    return table._replace(operands={**table.operands, "kv_lens": table.operands["kv_lens"] + rows})


def _rows_of_requests(k: torch.Tensor, v: torch.Tensor, batch: int) -> int:
    """The number of new rows of each request."""
    new = require_tensor(_OP, "k", k, _NEW)[1]
    for name, tensor in (("k", k), ("v", v)):
        shape = require_tensor(_OP, name, tensor, _NEW)
        if shape[:2] != (batch, new):
            raise wrong_shape(_OP, name, f"[batch_size={batch}, seqlen_new={new}, ...]", list(shape))
    return new


def _append(rows: tuple[torch.Tensor, torch.Tensor], pools: Pools, table: Table, rotary: Rotary | None, ask: Ask) -> Call:
    """Rows wider than the cache are divided by the factors that attention multiplies by; fp8 rows stay as they are."""
    k, v = rows
    flat = [x.reshape(table.batch * k.shape[1], *x.shape[2:]) for x in (k, v)]
    rope = "none" if rotary is None else "interleaved" if rotary.interleaved else "half"
    operands = {} if rotary is None else {"cos_sin_cache": rotary.table}
    if k.dtype != pools.k.dtype:
        operands |= {name: ask.operands[name] for name in ("k_scale", "v_scale") if name in ask.operands}
    return appended(_OP, New(flat[0], flat[1], even_indptr(table.batch, k.shape[1], k.device), rope, operands), pools, table)


def _turns_on(meaning: Meaning) -> bool:
    """Whether each row of q has its own angles, as in flash-attn."""
    return meaning.scores.causal or (meaning.scores.window_left, meaning.scores.window_right) != (-1, -1)


def _positions(lengths: torch.Tensor, rows: int, moves: bool) -> torch.Tensor:
    """[batch, rows]: the rotary position of each row of q. If all rows use the same angles, the position of the first new
    token."""
    first = lengths[:, None].long()
    return first + torch.arange(rows, device=first.device) if moves else first.expand(-1, rows)


def _refuse_half_append(
    k: torch.Tensor | None, v: torch.Tensor | None, rotary: Rotary | None, cache_seqlens: int | torch.Tensor | None
) -> None:
    """Raises for new rows without k, v or cache_seqlens, and for angles without new rows."""
    if k is not None and v is not None and cache_seqlens is None:
        raise wrong(_OP, "cache_seqlens", "the tokens before the new ones", "None")
    if (k is None) != (v is None):
        raise wrong(_OP, "k" if k is None else "v", "both k and v, or neither", "None")
    if rotary is not None:
        raise wrong(_OP, "rotary_cos", "None without k and v", "a tensor", "Rotation applies only to new rows.")
