"""flash_attn_varlen_func: requests of different lengths, one after the other; K and V are stored likewise, or in pages."""

from __future__ import annotations

from typing import Any

import torch

from opfacade.compat.attending import Ask, Call, Pools, Rows, over_pages, over_rows
from opfacade.compat.flash_attn.blocks import blocks
from opfacade.compat.flash_attn.descales import factors
from opfacade.compat.flash_attn.meaning import Meaning, kv_split, meaning_of, truth
from opfacade.compat.refusals import (
    refuse_gradients,
    refuse_unless,
    require_int32,
    require_integer,
    require_tensor,
    unmapped,
    wrong,
)
from opfacade.compat.selecting import rounded_up

_ROWS, _PAGES = "total_k, nheads_k, headdim", "num_blocks, block_size, nheads_k, headdim"
_MOST = 2**31 - 1


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None,
    max_seqlen_q: int | torch.Tensor,
    max_seqlen_k: int | torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
    *,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    attention_chunk: int = 0,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    s_aux: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> Any:
    """Attention of q `[total_q, nheads, headdim]`; request b has rows cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1, i32.

    k, v: `[total_k, nheads_k, headdim]` with cu_seqlens_k, i32; or, with block_table `[batch, max_blocks]` i32, pages
    `[num_blocks, block_size, nheads_k, headdim]` of any size, with the lengths seqused_k `[batch]` i32, or the lengths from
    cu_seqlens_k. max_seqlen_q is not needed; max_seqlen_k, if it is an int, is an upper bound on all requests; it is rounded up
    by at most a quarter, so that growing lengths share plans.
    q_descale, k_descale, v_descale: scales of fp8 pages, as in flash_attn_with_kvcache. Other arguments are as in
    flash_attn_func; alibi_slopes are [nheads], because only the device knows the request of a row. Returns out `[total_q,
    nheads, headdim]`, and with return_attn_probs lse `[nheads, total_q]` and an empty tensor.
    """
    op = "flash_attn_varlen_func"
    _, heads, _ = require_tensor(op, "q", q, "total_q, nheads, headdim")
    if block_table is not None:
        require_tensor(op, "block_table", block_table, "batch_size, max_blocks")
    for name, tensor in (("k", k), ("v", v)):
        require_tensor(op, name, tensor, _ROWS if block_table is None else _PAGES)
    (plus_1,) = require_int32(op, "cu_seqlens_q", cu_seqlens_q, "batch_size + 1")
    refuse_gradients(op, {"q": q, "k": k, "v": v})
    refuse_unless(op, {"seqused_q": (seqused_q, None), "leftpad_k": (leftpad_k, None)})
    meaning = meaning_of(op, heads, plus_1 - 1, locals())
    if meaning.is_of_each_request:
        hint = "flash_attn_func takes slopes of each request."
        raise unmapped(op, "alibi_slopes", f"slopes [nheads={heads}], the same for all requests", "[batch_size, nheads]", hint)
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    bound = _bound(op, max_seqlen_k)
    with_lse = truth(op, "return_attn_probs", return_attn_probs)
    ask = _ask(meaning, kv_split(op, num_splits, bound or k.shape[0]), with_lse, out)
    if block_table is None:
        refuse_unless(op, {name: (value, None) for name, value in (*descales.items(), ("seqused_k", seqused_k))})
        call = _ragged(ask, q, k, v, (cu_seqlens_q, cu_seqlens_k, bound))
    else:
        table = blocks(op, k, block_table, _lengths(op, seqused_k, cu_seqlens_k), bound)
        call = over_pages(factors(ask, q, k, descales), q, Pools(k, v, "NHD"), table, cu_seqlens_q)
    call.plan.run(call.args)
    o, lse = call.result
    return o if lse is None else (o, lse.t().contiguous(), q.new_empty(0))


def _ask(meaning: Meaning, split: str | int, with_lse: bool, out: torch.Tensor | None) -> Ask:
    return Ask(meaning.op, meaning.scores, meaning.sm_scale, split, with_lse, operands=meaning.operands(), out=out)


def _ragged(
    ask: Ask,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: tuple[torch.Tensor, torch.Tensor | None, int | None],
) -> Call:
    q_indptr, kv_indptr, bound = lengths
    require_int32(ask.op, "cu_seqlens_k", kv_indptr, "batch_size + 1")
    assert kv_indptr is not None
    return over_rows(ask, q, q_indptr, Rows(k, v, kv_indptr, bound))


def _bound(op: str, longest: object) -> int | None:
    """max_seqlen_k as a bound of plans, rounded up by at most a quarter. None if it is a tensor, which is not read."""
    if longest is None or isinstance(longest, torch.Tensor):
        return None
    bound = require_integer(op, "max_seqlen_k", longest)
    if not 0 <= bound <= _MOST:
        raise wrong(op, "max_seqlen_k", f"0 to {_MOST} tokens", bound)
    return min(rounded_up(bound), _MOST)


def _lengths(op: str, seqused_k: torch.Tensor | None, cu_seqlens_k: torch.Tensor | None) -> torch.Tensor:
    if cu_seqlens_k is not None:
        require_int32(op, "cu_seqlens_k", cu_seqlens_k, "batch_size + 1")
    if seqused_k is not None:
        require_int32(op, "seqused_k", seqused_k, "batch_size")
        return seqused_k
    if cu_seqlens_k is None:
        raise wrong(op, "seqused_k", "the lengths of pages, or cu_seqlens_k", "None")
    return cu_seqlens_k.diff()
