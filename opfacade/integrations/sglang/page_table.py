"""The page table of SGLang's requests, in buffers with fixed addresses that a captured graph may read."""

from __future__ import annotations

import torch
from torch import Tensor


class PageTable:
    """req_to_token [requests, tokens] contains the slot of each token; the page is slot // page_size."""

    def __init__(self, req_to_token: Tensor, page_size: int, max_kv_len: int) -> None:
        self._first_slots = req_to_token[:, :max_kv_len:page_size]
        self._page_size = page_size
        self._size = 0
        self._made: list[tuple[Tensor, Tensor, Tensor]] = []

    def reserve(self, batch: int) -> None:
        """Allocates buffers for `batch` requests. Smaller buffers are kept, because a captured graph may use them."""
        if batch > self._size:
            like = self._first_slots
            table = like.new_full((batch, like.shape[1]), -1, dtype=torch.int32)
            q_indptr = torch.arange(batch + 1, dtype=torch.int32, device=like.device)
            self._made.append((table, like.new_zeros(batch, dtype=torch.int32), q_indptr))
            self._size = batch

    def views(self, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """block_table [batch, pages], kv_lens [batch] and q_indptr [batch + 1]."""
        table, kv_lens, q_indptr = self._made[-1]
        return table[:batch], kv_lens[:batch], q_indptr[: batch + 1]

    def write(self, requests: Tensor, seq_lens: Tensor, extend_lens: Tensor | None) -> None:
        """requests [batch]: rows of req_to_token. extend_lens: the number of new rows of each request; None: one row each."""
        table, kv_lens, q_indptr = self.views(seq_lens.shape[0])
        torch.div(self._first_slots[requests], self._page_size, rounding_mode="floor", out=table)
        kv_lens.copy_(seq_lens)
        lens = torch.ones_like(kv_lens) if extend_lens is None else extend_lens
        q_indptr[0] = 0
        torch.cumsum(lens, 0, dtype=torch.int32, out=q_indptr[1:])
