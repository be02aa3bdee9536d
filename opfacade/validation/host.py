"""The rules of kernels/validation/index_rules.h, applied on the host for level full."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from opfacade.core.model import INT32_MAX
from opfacade.core.request_tables import NOWHERE, RequestTables
from opfacade.validation.rules import (
    ALL_PAGES,
    FALLS,
    LAST_PAGE,
    LENGTH,
    LENS,
    NEW_ROWS,
    PAGE,
    PAGES,
    RANGE,
    ROWS,
    START,
    STARTS,
    TOO_LONG,
    Finding,
)

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args


def findings(tables: RequestTables, args: Args) -> list[Finding]:
    """The first violation in each request. Reads every index tensor once."""
    rows = getattr(args, tables.rows).tolist() if tables.rows else None
    keys = _Keys(tables, args)
    found = []
    for request in range(tables.requests):
        wrong = entries(rows, request, tables.total_rows, ROWS) if rows is not None else None
        wrong = wrong or keys.judge(request, 1 if rows is None else rows[request + 1] - rows[request])
        if wrong is None and rows is not None and tables.appends:
            wrong = _new_rows(rows, request, keys.length(request))
        if wrong is not None:
            found.append(wrong)
    return found


def entries(v: list[int], request: int, limit: int, place: int) -> Finding | None:
    """Checks entries `request` and the next of an indptr. Elements past the last entry belong to no request."""
    low, high = v[request], v[request + 1]
    if request == 0 and low != 0:
        return Finding(START, place, 0, 0, low, 0)
    for position, value in ((request, low), (request + 1, high)):
        if not 0 <= value <= limit:
            return Finding(RANGE, place, request, position, value, limit)
    if high < low:
        return Finding(FALLS, place, request, request + 1, high, low)
    return None


def _new_rows(rows: list[int], request: int, length: int) -> Finding | None:
    if rows[request + 1] - rows[request] <= length:
        return None
    return Finding(NEW_ROWS, ROWS, request, request + 1, rows[request + 1], length)


def sound_pages(tables: RequestTables, pages: Tensor) -> Tensor:
    """Which ids are valid: pages of the pool, or for an append also NOWHERE."""
    sound = (pages >= 0) & (pages < tables.num_pages)
    return sound | (pages == NOWHERE) if tables.appends else sound


def used_keys(tables: RequestTables, length: int, row_count: int) -> range:
    """The positions of a request's keys that its rows see, or of its new rows. Pages outside this range may have any id."""
    first = length - row_count if tables.appends else length - row_count - tables.window if tables.window >= 0 else 0
    return range(max(0, first) if row_count else length, length)


class _Keys:
    """The keys of each request, from a block table, from flat page ids, or without pages."""

    def __init__(self, tables: RequestTables, args: Args) -> None:
        self.tables = tables
        self.starts: list[int] = getattr(args, tables.starts).tolist() if tables.starts else []
        self.lens: list[int] = getattr(args, tables.lens).tolist() if tables.lens else []
        pages: Tensor | None = getattr(args, tables.pages) if tables.pages else None
        self.pages = pages
        self.limit = tables.limit
        self.width = 0
        if pages is not None and tables.block:
            self.width = pages.shape[1]
            self.longest = min(INT32_MAX, self.width * tables.page_tokens, tables.max_len)
            self.totals = list(accumulate(self._count(n) for n in self.lens))
        elif pages is not None:
            self.limit = min(self.limit, pages.numel())

    def _count(self, length: int) -> int:
        """The number of pages for a length; 0 if the length is invalid."""
        return -(-length // self.tables.page_tokens) if 0 <= length <= self.longest else 0

    def judge(self, request: int, row_count: int) -> Finding | None:
        tables = self.tables
        if self.starts:
            wrong = entries(self.starts, request, self.limit, STARTS)
            wrong = wrong or self._last_page(request)
            if wrong is None and self.length(request) > tables.max_len:
                wrong = Finding(TOO_LONG, STARTS, request, request + 1, self.length(request), tables.max_len)
            if wrong is not None or self.pages is None:
                return wrong
        elif self.lens:
            if not 0 <= self.lens[request] <= self.longest:
                return Finding(LENGTH, LENS, request, request, self.lens[request], self.longest)
            if self.totals[request] > self.limit:
                return Finding(ALL_PAGES, LENS, request, request, self.totals[request], self.limit)
        return self._page(request, row_count) if self.pages is not None else None

    def _last_page(self, request: int) -> Finding | None:
        size = self.tables.page_tokens
        empty = self.pages is None or self.starts[request + 1] == self.starts[request]
        if empty or 1 <= self.lens[request] <= size:
            return None
        return Finding(LAST_PAGE, LENS, request, request, self.lens[request], size)

    def own_pages(self, request: int) -> Tensor:
        """The pages of a request whose entries are valid."""
        pages = self.pages
        assert pages is not None
        if self.tables.block:
            return pages[request, : self._count(self.lens[request])]
        return pages[self.starts[request] : self.starts[request + 1]]

    def _page(self, request: int, row_count: int) -> Finding | None:
        used = used_keys(self.tables, self.length(request), row_count)
        unused = used.start // self.tables.page_tokens
        own = self.own_pages(request)[unused:] if used else self.own_pages(request)[:0]
        wrong = ~sound_pages(self.tables, own)
        if not bool(wrong.any()):
            return None
        at = int(wrong.nonzero()[0])
        position = unused + at if self.tables.block else self.starts[request] + unused + at
        return Finding(PAGE, PAGES, request, position, int(own[at]), self.tables.num_pages)

    def length(self, request: int) -> int:
        """The number of tokens of a request whose entries are valid."""
        if not self.starts:
            return self.lens[request] if self.lens else 0
        count = self.starts[request + 1] - self.starts[request]
        if self.pages is None or count == 0:
            return count
        return (count - 1) * self.tables.page_tokens + self.lens[request]


def row_counts(tables: RequestTables, args: Args) -> list[int]:
    """The number of rows of q, or of new rows, of each request."""
    return [b - a for a, b in pairwise(getattr(args, tables.rows).tolist())] if tables.rows else [1] * tables.requests


def request_sizes(tables: RequestTables, args: Args) -> list[tuple[int, int]]:
    """(rows, tokens) of each request. The tables must be valid."""
    keys = _Keys(tables, args)
    return [(rows, keys.length(r)) for r, rows in enumerate(row_counts(tables, args))]


def requests_pages(tables: RequestTables, args: Args) -> list[tuple[Tensor, int]]:
    """(pages, length) of each request. The tables must be valid; pages without a used key may have any id."""
    keys = _Keys(tables, args)
    return [(keys.own_pages(r), keys.length(r)) for r in range(tables.requests)]
