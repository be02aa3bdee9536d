"""RequestTables: the operands of a call that say which rows, keys and pages are a request's."""

from __future__ import annotations

from dataclasses import dataclass

NOWHERE = -(2**30)  # kNowhere of kernels/validation/index_check_params.h


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTables:
    """The index operands of one descriptor, by name; an empty name is one it has not.

    rows: indptr of the rows of requests; where there is none each request has one row. starts: indptr of their keys, counted in
    entries of `pages`, or in keys where there are no pages. lens: the tokens of each request where there is no `starts`, else
    those on its last page. pages: ids of pages; block: they have a row for each request.
    limit: the greatest entry of `starts` beside the size of `pages`, or of a block table the pages of all requests. bounded:
    the caller set it. max_len: tokens of one request. window: keys before a row's own that it sees; -1 is all.
    appends: the rows are new and become the last tokens of their requests. Their page may be NOWHERE: the caller says that they
    are stored nowhere, and no check reports it, while any other page outside the pool is wrong.
    """

    op: str
    requests: int
    rows: str = ""
    starts: str = ""
    lens: str = ""
    pages: str = ""
    total_rows: int = 0
    page_tokens: int = 1
    num_pages: int = 0
    limit: int
    max_len: int
    window: int = -1
    block: bool = False
    appends: bool = False
    bounded: bool = False

    @property
    def names(self) -> tuple[str, str, str, str]:
        """Operand names by place, in the order of the device's rules."""
        return self.rows, self.starts, self.lens, self.pages
