"""Index tensors that are created on the device without synchronisation: indptrs and page tables for equal lengths, or from
given lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from opfacade.core.model import INT32_MAX
from opfacade.errors import Issue, from_issues
from opfacade.plans._attention.paging import PageTable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Table = dict[str, "Tensor"]  # by the names of args fields: BatchPagedDecodeArgs(q=..., **table)


def indptr(lens: Tensor) -> Tensor:
    """The first row of each request, and the end of the last request: int32 [batch + 1], starting at 0, on the device of
    `lens`.

    lens: int32 [batch]. Raises DTypeError, ShapeError or ArgumentTypeError.
    """
    import torch

    _require("indptr", "lens", lens, 1)
    starts = torch.zeros(lens.shape[0] + 1, dtype=torch.int32, device=lens.device)
    torch.cumsum(lens, 0, dtype=torch.int32, out=starts[1:])
    return starts


def even_indptr(batch_size: int, length: int, *, device: str | torch.device) -> Tensor:
    """The indptr of `batch_size` requests of `length` rows each: int32 [batch_size + 1]."""
    import torch

    _require_count("even_indptr", batch_size=batch_size, length=length)
    _require_total("even_indptr", "length", length, batch_size, "rows")
    place = _place("even_indptr", device)
    return torch.arange(batch_size + 1, dtype=torch.int32, device=place) * length


def even_page_table(
    batch_size: int, kv_len: int, page_size: int, *, form: PageTable = "block", device: str | torch.device
) -> Table:
    """The page table of requests of equal length with consecutive pages: request b has pages b*n to b*n + n - 1. A dense cache
    [batch, n * page_size, heads, dim], viewed as pages [batch * n, page_size, heads, dim], is such a pool.

    form: "block" gives block_table and kv_lens, "csr" gives kv_indptr, kv_indices and last_page_len.
    """
    import torch

    _require_count("even_page_table", batch_size=batch_size, kv_len=kv_len, page_size=page_size)
    pages = -(-kv_len // page_size)
    _require_total("even_page_table", "kv_len", pages, batch_size, "pages")
    lens = torch.full((batch_size,), kv_len, dtype=torch.int32, device=_place("even_page_table", device))
    return page_table(lens, page_size, max_pages=pages, form=form)


def page_table(
    kv_lens: Tensor,
    page_size: int,
    *,
    max_pages: int | None = None,
    form: PageTable = "block",
    block_table: Tensor | None = None,
) -> Table:
    """The page table of requests with the given lengths, in either form, on the device of `kv_lens`.

    kv_lens: int32 [batch], tokens. block_table: int32 [batch, max_pages], the pages of each request; without it, the pages of
    request b start at b * max_pages, as in a dense cache with max_pages * page_size tokens per request. max_pages: the largest
    number of pages of a request, required without a block_table; a longer request keeps its first max_pages pages. form:
    "block" gives block_table and kv_lens; "csr" gives kv_indptr [batch + 1], kv_indices [batch * max_pages], -1 from
    kv_indptr[-1] on, and last_page_len [batch]. Raises DTypeError, ShapeError, ArgumentTypeError or ArgumentError."""
    import torch

    if form not in get_args(PageTable):
        raise from_issues("page_table", "indices", [Issue("OPF-A064", "form", "'block' or 'csr'", repr(form))])
    _require("page_table", "kv_lens", kv_lens, 1)
    if block_table is None:
        _require_count("page_table", page_size=page_size, max_pages=max_pages)
        _require_total("page_table", "max_pages", max_pages or 0, kv_lens.shape[0], "pages")
        pages = torch.arange(kv_lens.shape[0] * (max_pages or 0), dtype=torch.int32, device=kv_lens.device)
        block_table = pages.view(kv_lens.shape[0], max_pages or 0)
    _require_count("page_table", page_size=page_size)
    _require("page_table", "block_table", block_table, 2, kv_lens.shape[0])
    if form == "block":
        return {"block_table": block_table, "kv_lens": kv_lens}
    return _csr(block_table, kv_lens, page_size)


def _csr(block_table: Tensor, kv_lens: Tensor, page_size: int) -> Table:
    import torch

    rows, width = block_table.shape
    counts = ((kv_lens + (page_size - 1)) // page_size).clamp(0, width)
    starts, places = indptr(counts), torch.arange(width, dtype=torch.int32, device=kv_lens.device)
    # Entries after a request's pages are written after the end, so that no size depends on a length.
    target = torch.where(places < counts[:, None], starts[:-1, None] + places, rows * width)
    indices = torch.full((rows * width + 1,), -1, dtype=torch.int32, device=kv_lens.device)
    indices.scatter_(0, target.reshape(-1).long(), block_table.reshape(-1))
    held = torch.minimum(kv_lens, counts * page_size)
    return {"kv_indptr": starts, "kv_indices": indices[:-1], "last_page_len": (held - 1) % page_size + 1}


def block_of_csr(kv_indptr: Tensor, kv_indices: Tensor, last_page_len: Tensor, page_size: int, *, max_pages: int) -> Table:
    """The block form of a csr page table: block_table int32 [batch, max_pages], -1 past a request's pages, and kv_lens [batch].

    A request with more than max_pages pages keeps the first max_pages. Raises DTypeError, ShapeError, ArgumentTypeError."""
    import torch

    op = "block_of_csr"
    _require_count(op, page_size=page_size, max_pages=max_pages)
    _require(op, "last_page_len", last_page_len, 1)
    _require(op, "kv_indptr", kv_indptr, 1, last_page_len.shape[0] + 1)
    _require(op, "kv_indices", kv_indices, 1)
    counts = kv_indptr.diff()
    places = torch.arange(max_pages, dtype=torch.int32, device=kv_indptr.device)
    padded = torch.nn.functional.pad(kv_indices, (0, 1), value=-1)  # the entry of a position without a page
    at = torch.where(places < counts[:, None], kv_indptr[:-1, None] + places, kv_indices.shape[0])
    lens = torch.where(counts > max_pages, max_pages * page_size, (counts - 1) * page_size + last_page_len)
    return {"block_table": padded[at.long()], "kv_lens": torch.where(counts > 0, lens, 0).int()}


def _require(op: str, name: str, given: object, rank: int, rows: int | None = None) -> None:
    """Checks that a tensor is int32 and has this rank; other types are refused instead of converted."""
    import torch

    if not isinstance(given, torch.Tensor):
        issue = Issue("OPF-A002", name, "a torch.Tensor", type(given).__name__, kind="ArgumentTypeError")
    elif given.dtype != torch.int32:
        hint = f"Use {name}.to(torch.int32); values are never narrowed in silence."
        issue = Issue("OPF-A010", name, "torch.int32", str(given.dtype), hint, kind="DTypeError")
    elif given.dim() != rank or rows not in (None, given.shape[0]):
        sizes = ["n" if rows is None else str(rows), "max_pages"][:rank]
        issue = Issue("OPF-A011", name, f"shape [{', '.join(sizes)}]", str(list(given.shape)), kind="ShapeError")
    else:
        return
    raise from_issues(op, "indices", [issue])


def _require_count(op: str, **given: object) -> None:
    """Checks that sizes are int32 on the host: at least 0, and at least 1 for a page."""
    for name, value in given.items():
        if type(value) is not int:
            issue = Issue("OPF-A065", name, "an int", repr(value), kind="ArgumentTypeError")
            raise from_issues(op, "indices", [issue])
        if value < (name == "page_size"):
            raise from_issues(op, "indices", [Issue("OPF-A065", name, f"at least {int(name == 'page_size')}", str(value))])
        if value > INT32_MAX:
            raise from_issues(op, "indices", [Issue("OPF-A065", name, f"at most {INT32_MAX}", str(value))])


def _require_total(op: str, name: str, each: int, batch: int, kind: str) -> None:
    """Checks that the total number of rows or pages fits in an int32."""
    if each * batch > INT32_MAX:
        got = f"{each * batch} of {batch} requests"
        raise from_issues(op, "indices", [Issue("OPF-A065", name, f"at most {INT32_MAX} {kind} in all requests", got)])


def _place(op: str, device: torch.device | str) -> torch.device:
    import torch

    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        issue = Issue("OPF-A066", "device", "a torch device or its name", repr(device), kind="ArgumentTypeError")
        raise from_issues(op, "indices", [issue]) from None
