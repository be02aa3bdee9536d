"""Checked index tensors on the host. Only the reference backend reads them, because it may synchronise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Descriptor
from opfacade.plans._attention.paging import PagedKvCacheDescriptor, PagePool
from opfacade.validation import host
from opfacade.validation.rules import error_of, tables_of

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args


def checked(descriptor: Descriptor[Any], args: Args) -> list[tuple[Tensor, int]]:
    """The pages and the length in tokens of each request, for both forms of table; empty without a table.

    Pages without a visible key may have any id and are read as page 0; NOWHERE is kept. Raises the IndexDataError of
    OPFACADE_VALIDATE=full, with the same bounds of the descriptor as in kernels.
    """
    tables = tables_of(descriptor)
    if tables is None:
        return []
    found = host.findings(tables, args)
    if found:
        raise error_of(tables, found)
    if not tables.pages:
        return []
    return [(pages.where(host.sound_pages(tables, pages), 0), n) for pages, n in host.requests_pages(tables, args)]


def token_index(cache: PagePool, pages: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """(page, slot) of the tokens start to stop - 1 of a request, as an index into a pool viewed by token."""
    import torch

    at = torch.arange(start, stop, device=pages.device)
    return pages.long()[at // cache.page_size], at % cache.page_size


def by_token(pool: Tensor, cache: PagedKvCacheDescriptor) -> Tensor:
    """A view of a pool as [pages, page_size, kv_heads, head_dim], for any layout."""
    return pool.transpose(1, 2) if cache.layout == "HND" else pool
