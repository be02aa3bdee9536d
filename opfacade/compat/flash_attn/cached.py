"""Attention over a cache with the same number of rows per request: one call, or one call per request if slopes differ."""

from __future__ import annotations

from dataclasses import replace

import torch

from opfacade.compat.attending import Ask, Call, Pools, Table, over_pages
from opfacade.compat.constants import even_indptr
from opfacade.compat.flash_attn.meaning import Meaning
from opfacade.compat.refusals import require_tensor, wrong_dtype, wrong_shape


def attention_calls(
    meaning: Meaning, ask: Ask, q: torch.Tensor, pools: Pools, table: Table, leftpad: torch.Tensor | None
) -> list[Call]:
    """q [batch, rows, heads, dim]. leftpad [batch]: the index of the first visible key of each request."""
    if leftpad is not None:
        if require_tensor(ask.op, "cache_leftpad", leftpad, "batch_size") != (table.batch,):
            raise wrong_shape(ask.op, "cache_leftpad", f"[batch_size={table.batch}]", list(leftpad.shape))
        if leftpad.dtype != torch.int32:
            raise wrong_dtype(ask.op, "cache_leftpad", torch.int32, leftpad.dtype)
    if not meaning.is_of_each_request:
        return [_call(meaning, ask, q, pools, table, leftpad)]
    parts = []
    for request in range(table.batch):
        own = slice(request, request + 1)
        operands = {name: operand[own] for name, operand in table.operands.items()}
        pages = table._replace(operands=operands, batch=1, max_pages=max(1, table.max_pages // table.batch))
        first = None if leftpad is None else leftpad[own]
        parts.append(_call(meaning.of_request(request), ask, q[own], pools, pages, first))
    return parts


def _call(meaning: Meaning, ask: Ask, q: torch.Tensor, pools: Pools, table: Table, leftpad: torch.Tensor | None) -> Call:
    batch, rows, heads, dim = q.shape
    scores, operands = meaning.scores, {**ask.operands, **meaning.operands()}
    if rows == 1 and meaning.slopes is None:
        scores = scores.of_last_row()
    if leftpad is not None:
        scores = scores._replace(left_padding=True)
        operands["row_params"] = leftpad.repeat_interleave(rows)[None]
    own = replace(ask, scores=scores, operands=operands)
    q_indptr = None if rows == 1 else even_indptr(batch, rows, q.device)
    return over_pages(own, q.reshape(batch * rows, heads, dim), pools, table, q_indptr)
