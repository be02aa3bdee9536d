"""Converts requests with several rows to requests with one row each, with their pages and the number of keys that the row
sees."""

from __future__ import annotations

import torch

from opfacade.compat.attending import Table


def rows_apart(
    q_lens: torch.Tensor, kv_indptr: torch.Tensor, device_tables: tuple[torch.Tensor, torch.Tensor], causal: bool
) -> Table:
    """q_lens [batch], kv_indptr: on the host. device_tables: page ids [n], and tokens [batch], of each request."""
    indices, lens = device_tables
    device, batch = indices.device, q_lens.shape[0]
    pages = kv_indptr[: batch + 1].diff()
    width = max(1, int(pages.max())) if batch else 1
    owner = torch.arange(batch).repeat_interleave(q_lens.long())
    own = owner.to(device)
    seen = lens[own] - _rows_after(q_lens, owner).to(device, torch.int32) if causal else lens[own]
    at = kv_indptr[:-1].long()[owner][:, None] + torch.arange(width)
    at = at.clamp(max=max(0, indices.shape[0] - 1)).to(device)
    table = indices[at] if indices.shape[0] else torch.zeros(at.shape, dtype=torch.int32, device=device)
    operands = {"block_table": table, "kv_lens": seen.clamp(min=0)}
    return Table("block", operands, owner.shape[0], max(1, owner.shape[0] * width))


def _rows_after(q_lens: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
    """The number of rows of the same request after each row."""
    ends = q_lens.long().cumsum(0)
    return ends[owner] - 1 - torch.arange(owner.shape[0])
