"""The page table as host integers, checked. The reference backend may read it: it promises no asynchrony."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

from opfacade.paging import PagedKvCacheDescriptor, PagePool
from opfacade.validation.rules import index_error

if TYPE_CHECKING:
    from torch import Tensor


def bad_index(op: str, argument: str, position: int, value: int, allowed: str, request: int = -1) -> NoReturn:
    raise index_error(op, argument, position, value, allowed, request)


def offsets(op: str, argument: str, indptr: Tensor, total: int, exact: bool) -> list[int]:
    """An indptr as a checked list: starts at 0, never falls, ends at `total` (or within it)."""
    values: list[int] = indptr.tolist()
    if values[0] != 0:
        bad_index(op, argument, 0, values[0], "0")
    for i, (low, high) in enumerate(pairwise(values)):
        if high < low:
            bad_index(op, argument, i + 1, high, f"at least {low}", i)
    last = values[-1]
    if last > total or (exact and last != total):
        bad_index(op, argument, len(values) - 1, last, f"{total}" if exact else f"at most {total}")
    return values


def pages_and_lengths(op: str, cache: PagePool, args: Any) -> tuple[list[Tensor], list[int]]:
    """For each request the pages it reads and its length in tokens, whichever form the table has."""
    pages, lengths = _block(op, cache, args) if args.block_table is not None else _csr(op, cache, args)
    for request, own in enumerate(pages):
        if own.numel() and (int(own.min()) < 0 or int(own.max()) >= cache.num_total_pages):
            position = next(i for i, p in enumerate(own.tolist()) if not 0 <= p < cache.num_total_pages)
            bad_index(op, "page table", position, int(own[position]), f"a page in [0, {cache.num_total_pages})", request)
    return pages, lengths


def _csr(op: str, cache: PagePool, args: Any) -> tuple[list[Tensor], list[int]]:
    indptr = offsets(op, "kv_indptr", args.kv_indptr, args.kv_indices.numel(), exact=False)
    pages, lengths = [], []
    for request, last in enumerate(args.last_page_len.tolist()):
        count = indptr[request + 1] - indptr[request]
        if count and not 1 <= last <= cache.page_size:
            bad_index(op, "last_page_len", request, last, f"a length in [1, {cache.page_size}]", request)
        pages.append(args.kv_indices[indptr[request] : indptr[request + 1]])
        lengths.append((count - 1) * cache.page_size + last if count else 0)
    return pages, lengths


def _block(op: str, cache: PagePool, args: Any) -> tuple[list[Tensor], list[int]]:
    capacity = args.block_table.shape[1] * cache.page_size
    lengths: list[int] = args.kv_lens.tolist()
    for request, length in enumerate(lengths):
        if not 0 <= length <= capacity:
            bad_index(op, "kv_lens", request, length, f"a length in [0, {capacity}]", request)
    return [args.block_table[r, : -(-n // cache.page_size)] for r, n in enumerate(lengths)], lengths


def token_index(cache: PagePool, pages: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """(page, slot) of the tokens start to stop of a request: an index into a pool viewed by token."""
    import torch

    at = torch.arange(start, stop, device=pages.device)
    return pages.long()[at // cache.page_size], at % cache.page_size


def by_token(pool: Tensor, cache: PagedKvCacheDescriptor) -> Tensor:
    """A view of a pool as [pages, page_size, kv_heads, head_dim], whatever its layout."""
    return pool.transpose(1, 2) if cache.layout == "HND" else pool
