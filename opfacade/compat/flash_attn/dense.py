"""flash_attn_func: requests of equal length, in tensors [batch, seqlen, heads, head_dim]."""

from __future__ import annotations

from typing import Any

import torch

from opfacade.compat.attending import Ask, Pools, Rows, Table, aligned, over_pages, over_rows
from opfacade.compat.constants import even_indptr, filled, numbered
from opfacade.compat.flash_attn.meaning import Meaning, kv_split, lse_of_rows, meaning_of, truth
from opfacade.compat.refusals import refuse_gradients, refuse_unless, require_tensor, wrong_shape

_DIMS = "batch_size, seqlen, nheads, headdim"


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    attention_chunk: int = 0,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    s_aux: torch.Tensor | None = None,
) -> Any:
    """Attention of q `[batch, seqlen_q, nheads, headdim]` over k, v `[batch, seqlen_k, nheads_k, headdim]`, f16, bf16 or f32.

    window_size: (left, right) around i + seqlen_k - seqlen_q for row i; -1 means unbounded. softcap: above 0, c * tanh(s / c).
    alibi_slopes: [nheads] or [batch, nheads] f32; different slopes per request need one launch per request. s_aux: [nheads],
    one attention sink per head. num_splits: 0 lets the library choose the split, 1 never splits. Returns out `[batch, seqlen_q,
    nheads, headdim]`; with return_attn_probs also the natural lse, f32 `[batch, nheads, seqlen_q]`, and an empty tensor. Raises
    UnsupportedError (OPF-C001) for an unmapped argument, GradNotSupportedError, ShapeError."""
    op = "flash_attn_func"
    batch, rows, heads, _ = require_tensor(op, "q", q, _DIMS)
    for name, tensor in (("k", k), ("v", v)):
        shape = require_tensor(op, name, tensor, _DIMS)
        if shape[:2] != (batch, k.shape[1]):
            raise wrong_shape(op, name, f"[batch_size={batch}, seqlen={k.shape[1]}, ...]", list(shape))
    refuse_gradients(op, {"q": q, "k": k, "v": v})
    refuse_unless(op, {"q_descale": (q_descale, None), "k_descale": (k_descale, None), "v_descale": (v_descale, None)})
    meaning, with_lse = meaning_of(op, heads, batch, locals()), truth(op, "return_attn_probs", return_attn_probs)
    split = kv_split(op, num_splits, k.shape[1])
    if meaning.is_of_each_request:
        parts = [attend(meaning.of_request(b), q[b : b + 1], k[b : b + 1], v[b : b + 1], split) for b in range(batch)]
        out, lse = (torch.cat(part) for part in zip(*parts, strict=True))
    else:
        out, lse = attend(meaning, q, k, v, split, with_lse)
    return (out, lse, q.new_empty(0)) if with_lse else out


def attend(
    meaning: Meaning, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, split: str | int, with_lse: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """o, like q but with the width of v, and lse [batch, heads, rows], or an empty tensor."""
    batch, rows, heads, dim = q.shape
    scores = meaning.scores.of_last_row() if rows == 1 and meaning.slopes is None else meaning.scores
    ask = Ask(meaning.op, scores, meaning.sm_scale, split, with_lse, operands=meaning.operands())
    flat = q.reshape(batch * rows, heads, dim)
    q_indptr = even_indptr(batch, rows, q.device)
    if k.shape[1] and v.shape[-1] == k.shape[-1] and (rows == 1 or not (_flat(k) and _flat(v))):
        call = over_pages(
            ask,
            flat,
            Pools(aligned(k), aligned(v), "NHD", page_grows=True),
            one_page_table(batch, k.shape[1], q.device),
            None if rows == 1 else q_indptr,
        )
    else:
        flat_k, flat_v = (x.reshape(batch * k.shape[1], *x.shape[2:]) for x in (k, v))
        rows_of_keys = Rows(flat_k, flat_v, even_indptr(batch, k.shape[1], q.device), k.shape[1])
        call = over_rows(ask, flat, q_indptr, rows_of_keys)
    call.plan.run(call.args)
    o, lse = call.result
    return o.view(batch, rows, heads, v.shape[-1]), lse_of_rows(lse, batch, rows) if with_lse else q.new_empty(0)


def one_page_table(batch: int, length: int, device: torch.device) -> Table:
    """Each request is one full page."""
    operands = {"block_table": numbered(batch, device)[:, None], "kv_lens": filled(batch, length, device)}
    return Table("block", operands, batch, batch, length)


def _flat(x: torch.Tensor) -> bool:
    """Whether the rows of all requests are consecutive with one stride."""
    return x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1)
