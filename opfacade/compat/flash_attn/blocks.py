"""flash-attn's block tables as opfacade's page tables."""

from __future__ import annotations

import torch

from opfacade.compat.attending import Table
from opfacade.compat.refusals import require_tensor, wrong_shape

_MOST_TOKENS = 2**31 - 1


def blocks(op: str, k: torch.Tensor, block_table: torch.Tensor, lengths: torch.Tensor, bound: int | None = None) -> Table:
    """block_table [batch, max_blocks] i32 over pages of k, and the number of tokens of each request, [batch] i32."""
    _, page_size, _, _ = require_tensor(op, "k", k, "num_blocks, block_size, nheads_k, headdim")
    batch, width = require_tensor(op, "block_table", block_table, "batch_size, max_blocks")
    (count,) = require_tensor(op, "cache_seqlens", lengths, "batch_size")
    if count != batch:
        raise wrong_shape(op, "block_table", f"[batch_size={count}, max_blocks]", list(block_table.shape))
    capacity = width * page_size
    pages = min(batch * width, _MOST_TOKENS // max(1, page_size))
    operands = {"block_table": block_table, "kv_lens": lengths}
    return Table("block", operands, batch, pages, capacity if bound is None else min(bound, capacity))
