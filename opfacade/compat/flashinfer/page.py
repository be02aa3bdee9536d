"""FlashInfer's helpers of pages: lengths, positions of new rows, and appends of rows at any positions."""

from __future__ import annotations

import torch

from opfacade.compat.appending import New, appended
from opfacade.compat.attending import Pools, Table
from opfacade.compat.constants import even_indptr
from opfacade.compat.flashinfer.arguments import layout_of
from opfacade.compat.flashinfer.caches import Cache, pools_of
from opfacade.compat.refusals import require_tensor, unmapped, wrong_shape


def get_seq_lens(kv_indptr: torch.Tensor, kv_last_page_len: torch.Tensor, page_size: int) -> torch.Tensor:
    """Tokens of each request, `[batch]`. A request without pages must have a last_page_len of 0."""
    return torch.clamp(kv_indptr[1:] - kv_indptr[:-1] - 1, min=0) * page_size + kv_last_page_len


def get_batch_indices_positions(
    append_indptr: torch.Tensor,
    seq_lens: torch.Tensor,
    nnz: int,
    batch_indices: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Request and position of each of nnz new rows, i32; rows past append_indptr[-1] have request -1 and position 0.

    seq_lens counts the new rows. Given tensors are written and returned.
    """
    row = torch.arange(nnz, dtype=append_indptr.dtype, device=append_indptr.device)
    request = torch.searchsorted(append_indptr[1:].contiguous(), row, right=True)
    batch = append_indptr.shape[0] - 1
    known = request < batch
    own = request.clamp(max=max(0, batch - 1))
    position = seq_lens[own] - append_indptr[own + 1] + row if batch else row
    found = torch.where(known, request, -1).int(), torch.where(known, position, 0).int()
    given = (batch_indices, positions)
    first, second = (new if old is None else old.copy_(new) for old, new in zip(given, found, strict=True))
    return first, second


def append_paged_kv_cache(
    append_key: torch.Tensor,
    append_value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    paged_kv_cache: Cache,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    kv_layout: str = "NHD",
) -> None:
    """Rows `[nnz, num_kv_heads, head_dim]` to positions of requests, in place. Rows of request -1 at the end are not written.

    An fp8 cache takes wider rows, rounded to nearest. Index tensors are i32.
    """
    op = "append_paged_kv_cache"
    pools = pools_of(op, paged_kv_cache, layout_of(op, kv_layout))
    table = _one_page_a_row(op, (batch_indices, positions), (kv_indices, kv_indptr), pools.facts[1])
    new = New(append_key, append_value, _starts(batch_indices))
    call = appended(op, new, pools, table)
    call.plan.run(call.args)


def append_paged_mla_kv_cache(
    append_ckv: torch.Tensor,
    append_kpe: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    ckv_cache: torch.Tensor | None,
    kpe_cache: torch.Tensor | None,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
) -> None:
    """Latent rows `[nnz, width]` to positions of requests, in place, in each cache `[pages, page_size, width]` that is given.

    The halves of a row are written as K and V: one launch a cache.
    """
    op, calls = "append_paged_mla_kv_cache", []
    for name, new, cache in (("append_ckv", append_ckv, ckv_cache), ("append_kpe", append_kpe, kpe_cache)):
        if cache is None:
            continue
        _, page_size, width = require_tensor(op, f"{name.removeprefix('append_')}_cache", cache, "pages, page_size, width")
        if require_tensor(op, name, new, "nnz, width")[1] != width:
            raise wrong_shape(op, name, f"[nnz, {width}]", list(new.shape))
        if width % 2:
            raise unmapped(op, name, "rows of an even width", width)
        table = _one_page_a_row(op, (batch_indices, positions), (kv_indices, kv_indptr), page_size)
        k_new, v_new = new[:, None].chunk(2, -1)
        k, v = cache[:, :, None].chunk(2, -1)
        calls.append(appended(op, New(k_new, v_new, _starts(batch_indices)), Pools(k, v, "NHD"), table))
    for call in calls:
        call.check()
    for call in calls:
        call.plan.run(call.args)


def _one_page_a_row(
    op: str, rows: tuple[torch.Tensor, torch.Tensor], pages: tuple[torch.Tensor, torch.Tensor], page_size: int
) -> Table:
    """Each new row as one request with the page that receives it, so that rows may have any positions."""
    (request, position), (indices, indptr) = rows, pages
    (count,) = require_tensor(op, "batch_indices", request, "nnz")
    if require_tensor(op, "positions", position, "nnz") != (count,):
        raise wrong_shape(op, "positions", f"[nnz={count}]", list(position.shape))
    at = indptr[request.clamp(min=0).long()] + position // page_size
    last = (position % page_size + 1).to(torch.int32)
    page = indices[at.long().clamp(max=max(0, indices.shape[0] - 1))] if indices.shape[0] else at
    operands = {"kv_indptr": even_indptr(count, 1, request.device), "kv_indices": page, "last_page_len": last}
    return Table("csr", operands, count, count)


def _starts(request: torch.Tensor) -> torch.Tensor:
    """[nnz + 1]: one row a request; none for the last ones, which belong to no request."""
    return torch.nn.functional.pad((request >= 0).cumsum(0, dtype=torch.int32), (1, 0))
