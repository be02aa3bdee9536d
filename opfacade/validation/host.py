"""The rules of kernels/validation/index_rules.h on the host, which reads the tensors: for level full."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from opfacade.validation.rules import (
    ALL_PAGES,
    FALLS,
    KV_INDPTR,
    LAST_PAGE,
    LENGTH,
    LENS,
    NEW_ROWS,
    PAGE,
    PAGES,
    RANGE,
    ROWS,
    START,
    TOTAL,
    Finding,
    Tables,
)

if TYPE_CHECKING:
    from torch import Tensor

INT32_MAX = 2**31 - 1


def findings(tables: Tables, args: Any) -> list[Finding]:
    """The first thing wrong with each request, as one host read of every index tensor shows."""
    rows = getattr(args, tables.rows).tolist() if tables.rows else None
    keys = _Keys(tables, args)
    found = []
    for request in range(tables.batch_size):
        wrong = entries(rows, request, tables.total_rows, True, ROWS) if rows is not None else None
        wrong = wrong or keys.judge(request)
        if wrong is None and rows is not None and tables.appends:
            wrong = _new_rows(rows, request, keys.length(request))
        if wrong is not None:
            found.append(wrong)
    return found


def entries(v: list[int], request: int, limit: int, exact: bool, place: int) -> Finding | None:
    """Entries `request` and the next of an indptr. exact: the last one must be the limit."""
    low, high, last = v[request], v[request + 1], request == len(v) - 2
    if request == 0 and low != 0:
        return Finding(START, place, 0, 0, low, 0)
    for position, value in ((request, low), (request + 1, high)):
        if not 0 <= value <= limit:
            return Finding(RANGE, place, request, position, value, limit)
    if high < low:
        return Finding(FALLS, place, request, request + 1, high, low)
    if exact and last and high != limit:
        return Finding(TOTAL, place, request, request + 1, high, limit)
    return None


def _new_rows(rows: list[int], request: int, length: int) -> Finding | None:
    if rows[request + 1] - rows[request] <= length:
        return None
    return Finding(NEW_ROWS, ROWS, request, request + 1, rows[request + 1], length)


class _Keys:
    """The keys of each request, in whichever form."""

    def __init__(self, tables: Tables, args: Any) -> None:
        self.tables = tables
        self.indptr: list[int] = getattr(args, tables.kv_indptr).tolist() if tables.kv_indptr else []
        self.lens: list[int] = getattr(args, tables.lens).tolist() if tables.lens else []
        pages: Tensor | None = getattr(args, tables.pages) if tables.pages else None
        self.pages = pages
        self.limit = tables.kv_limit
        self.width = 0
        if pages is not None and tables.block:
            self.width = pages.shape[1]
            self.totals = list(accumulate(self._count(n) for n in self.lens))
        elif pages is not None:
            self.limit = min(self.limit, pages.numel())

    def _count(self, length: int) -> int:
        """Pages of a length that a row of the table can have."""
        tables = self.tables
        sound = 0 <= length <= min(INT32_MAX, self.width * tables.page_size)
        return -(-length // tables.page_size) if sound else 0

    def judge(self, request: int) -> Finding | None:
        tables = self.tables
        if self.indptr:
            wrong = entries(self.indptr, request, self.limit, False, KV_INDPTR)
            if wrong is not None or self.pages is None:
                return wrong
            last, any_page = self.lens[request], self.indptr[request + 1] > self.indptr[request]
            if any_page and not 1 <= last <= tables.page_size:
                return Finding(LAST_PAGE, LENS, request, request, last, tables.page_size)
        elif self.lens:
            longest = min(INT32_MAX, self.width * tables.page_size)
            if not 0 <= self.lens[request] <= longest:
                return Finding(LENGTH, LENS, request, request, self.lens[request], longest)
            if self.totals[request] > self.limit:
                return Finding(ALL_PAGES, LENS, request, request, self.totals[request], self.limit)
        return self._page(request) if self.pages is not None else None

    def own_pages(self, request: int) -> Tensor:
        """The pages of a request whose entries are sound."""
        pages = self.pages
        assert pages is not None
        if self.tables.block:
            return pages[request, : self._count(self.lens[request])]
        return pages[self.indptr[request] : self.indptr[request + 1]]

    def _page(self, request: int) -> Finding | None:
        own = self.own_pages(request)
        if own.numel() == 0 or (int(own.min()) >= 0 and int(own.max()) < self.tables.num_pages):
            return None
        values: list[int] = own.tolist()
        at = next(i for i, page in enumerate(values) if not 0 <= page < self.tables.num_pages)
        position = at if self.tables.block else self.indptr[request] + at
        return Finding(PAGE, PAGES, request, position, values[at], self.tables.num_pages)

    def length(self, request: int) -> int:
        """Tokens of a request whose entries are sound."""
        if not self.indptr:
            return self.lens[request]
        count = self.indptr[request + 1] - self.indptr[request]
        if self.pages is None or count == 0:
            return count
        return (count - 1) * self.tables.page_size + self.lens[request]


def requests_pages(tables: Tables, args: Any) -> list[tuple[Tensor, int]]:
    """Pages and length of every request of sound tables."""
    keys = _Keys(tables, args)
    return [(keys.own_pages(r), keys.length(r)) for r in range(tables.batch_size)]
