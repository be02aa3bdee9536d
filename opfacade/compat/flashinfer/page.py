"""FlashInfer's page helpers: lengths, positions of new rows, and appends of rows at any positions."""

from __future__ import annotations

from operator import index

import torch

from opfacade.compat.appending import New, appended
from opfacade.compat.attending import Pools, Table
from opfacade.compat.constants import even_indptr
from opfacade.compat.flashinfer._append.errors import Append
from opfacade.compat.flashinfer._append.rows import Where
from opfacade.compat.flashinfer._arguments import layout_of, require_sizes
from opfacade.compat.flashinfer._attention.caches import Cache, pools_of
from opfacade.compat.refusals import require_integer, require_tensor, unmapped, wrong, wrong_dtype, wrong_shape
from opfacade.plans.kv_cache import NOWHERE


def get_seq_lens(kv_indptr: torch.Tensor, kv_last_page_len: torch.Tensor, page_size: int) -> torch.Tensor:
    """The number of tokens of each request, `[batch]`. A request without pages must have a last_page_len of 0."""
    op = "get_seq_lens"
    (entries,) = _require_index(op, "kv_indptr", kv_indptr, "batch + 1")
    (batch,) = _require_index(op, "kv_last_page_len", kv_last_page_len, "batch")
    if batch != entries - 1:
        raise wrong_shape(op, "kv_last_page_len", f"[batch={entries - 1}]", list(kv_last_page_len.shape))
    _require_device(op, "kv_indptr", kv_indptr, kv_last_page_len=kv_last_page_len)
    require_sizes(op, locals(), "page_size")
    return torch.clamp(kv_indptr[1:] - kv_indptr[:-1] - 1, min=0) * page_size + kv_last_page_len


def get_batch_indices_positions(
    append_indptr: torch.Tensor,
    seq_lens: torch.Tensor,
    nnz: int,
    batch_indices: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The request and position of each of nnz new rows, i32; rows past append_indptr[-1] have request -1 and position 0.
    seq_lens includes the new rows. If tensors are given, they are written and returned."""
    op, batch, rows = "get_batch_indices_positions", *_new_rows(append_indptr, seq_lens, nnz)
    given = {"batch_indices": batch_indices, "positions": positions}
    for name, old in given.items():
        if old is not None and _require_index(op, name, old, "nnz") != (rows,):
            raise wrong_shape(op, name, f"[nnz={rows}]", list(old.shape))
    row = torch.arange(rows, dtype=append_indptr.dtype, device=append_indptr.device)
    request = torch.searchsorted(append_indptr[1:].contiguous(), row, right=True)
    known = request < batch
    own = request.clamp(max=max(0, batch - 1))
    position = seq_lens[own] - append_indptr[own + 1] + row if batch else row
    found = torch.where(known, request, -1).int(), torch.where(known, position, 0).int()
    first, second = (new if old is None else old.copy_(new) for old, new in zip(given.values(), found, strict=True))
    return first, second


def _new_rows(indptr: torch.Tensor, seq_lens: torch.Tensor, nnz: int) -> tuple[int, int]:
    """The number of requests, and of new rows."""
    op = "get_batch_indices_positions"
    (entries,) = _require_index(op, "append_indptr", indptr, "batch + 1")
    if entries < 1:
        raise wrong_shape(op, "append_indptr", "[batch + 1]", [0])
    (lens,) = _require_index(op, "seq_lens", seq_lens, "batch")
    if lens < entries - 1:
        raise wrong_shape(op, "seq_lens", f"[batch={entries - 1}]", [lens])
    _require_device(op, "append_indptr", indptr, seq_lens=seq_lens)
    try:
        rows = index(nnz)
    except TypeError:
        rows = require_integer(op, "nnz", nnz)
    require_sizes(op, {"nnz": rows}, "nnz")
    return entries - 1, rows


def _require_index(op: str, argument: str, tensor: torch.Tensor, dims: str) -> tuple[int, ...]:
    shape = require_tensor(op, argument, tensor, dims)
    if tensor.dtype not in (torch.int32, torch.int64):
        raise wrong_dtype(op, argument, "int32 or int64", tensor.dtype)
    return shape


def _require_device(op: str, first: str, tensor: torch.Tensor, **others: torch.Tensor) -> None:
    for name, other in others.items():
        if other.device != tensor.device:
            raise wrong(op, name, f"the device of {first}, {tensor.device}", other.device)


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
    """Writes rows `[nnz, num_kv_heads, head_dim]` to positions of requests, in place. Rows with request -1 are not written.

    An fp8 cache also accepts 16-bit and f32 rows, which are rounded to nearest. Index tensors are i32. A row whose request does
    not exist, or whose position is beyond the pages of its request, is not written on a GPU, and OPFACADE_VALIDATE=indices
    reports it; on a CPU, the call is refused."""
    op = "append_paged_kv_cache"
    pools = pools_of(op, paged_kv_cache, layout_of(op, kv_layout))
    for name, new in (("append_key", append_key), ("append_value", append_value)):
        require_tensor(op, name, new, "nnz, num_kv_heads, head_dim")
    where = Where(batch_indices, positions, kv_indices, kv_indptr)
    _append(op, (append_key, append_value), pools, where).run()


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
    """Writes latent rows `[nnz, width]` to positions of requests, in place, in each given cache `[pages, page_size, width]`.
    The halves of a row are written as K and V, in one launch per cache."""
    op, appends = "append_paged_mla_kv_cache", []
    for name, new, cache in (("append_ckv", append_ckv, ckv_cache), ("append_kpe", append_kpe, kpe_cache)):
        if cache is None:
            continue
        _, _, width = require_tensor(op, f"{name.removeprefix('append_')}_cache", cache, "pages, page_size, width")
        if require_tensor(op, name, new, "nnz, width")[1] != width:
            raise wrong_shape(op, name, f"[nnz, {width}]", list(new.shape))
        if width % 2:
            raise unmapped(op, name, "rows with an even width", width)
        k_new, v_new = new[:, None].chunk(2, -1)
        k, v = cache[:, :, None].chunk(2, -1)
        where = Where(batch_indices, positions, kv_indices, kv_indptr)
        appends.append(_append(op, (k_new, v_new), Pools(k, v, "NHD"), where))
    for append in appends:
        append.call.check()
    for append in appends:
        append.run()


def _checked(op: str, where: Where) -> Where:
    (count,) = _require_index(op, "batch_indices", where.request, "nnz")
    if _require_index(op, "positions", where.position, "nnz") != (count,):
        raise wrong_shape(op, "positions", f"[nnz={count}]", list(where.position.shape))
    _require_index(op, "kv_indices", where.indices, "pages of all requests")
    _require_index(op, "kv_indptr", where.indptr, "batch + 1")
    others = {"positions": where.position, "kv_indices": where.indices, "kv_indptr": where.indptr}
    _require_device(op, "batch_indices", where.request, **others)
    return where


def _append(op: str, new: tuple[torch.Tensor, torch.Tensor], pools: Pools, where: Where) -> Append:
    stored = _checked(op, where).request >= 0
    call = appended(op, New(*new, _starts(stored)), pools, _one_page_a_row(where, stored, pools.facts[1]))
    return Append(op, call, where)


def _one_page_a_row(where: Where, stored: torch.Tensor, page_size: int) -> Table:
    """Each new row as one request with the page that receives it, so that rows may have any positions. A row that is not stored
    has page NOWHERE, and a row whose request has no page for it has page -1; neither is written."""
    request, position, indices, indptr = where
    count, batch, most = request.shape[0], indptr.shape[0] - 1, indices.shape[0]
    last = (position % page_size + 1).to(torch.int32)
    if batch < 1 or not most:
        page = torch.full_like(last, -1)
    else:
        own = request.clamp(0, batch - 1)
        at = indptr[:-1].index_select(0, own) + position // page_size
        held = at.clamp(0, most - 1)
        inside = (request == own) & (position >= 0) & (at == held) & (at < indptr[1:].index_select(0, own))
        page = torch.where(inside, indices.index_select(0, held), -1)
    page = torch.where(stored, page, NOWHERE)
    operands = {"kv_indptr": even_indptr(count, 1, request.device), "kv_indices": page, "last_page_len": last}
    return Table("csr", operands, count, count)


def _starts(stored: torch.Tensor) -> torch.Tensor:
    """indptr [nnz + 1]: one row per request; the last requests, for rows that are not stored, have none."""
    rows = even_indptr(stored.shape[0], 1, stored.device)
    if not stored.shape[0]:
        return rows
    return torch.minimum(rows, torch.where(stored, rows[1:], 0).amax())
