"""RequestTables: the operands of a call that assign rows, keys and pages to requests."""

from __future__ import annotations

from dataclasses import dataclass

NOWHERE = -(2**30)  # kNowhere of kernels/validation/index_check_params.h


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTables:
    """The names of a descriptor's index operands; an empty name means that it does not have this operand.

    rows: indptr of rows per request; if absent, each request has one row. starts: indptr of keys per request, counted in
    entries of `pages`, or in keys without pages. lens: the number of tokens per request; with `starts`, only those on its last
    page. pages: page ids; block: `pages` has one row per request.
    limit: the maximum entry of `starts`, in addition to the size of `pages`; for a block table, the maximum total of pages.
    bounded: the caller set the limit. max_len: maximum tokens per request. window: the number of keys before its own that a row
    sees; -1: all.
    appends: the rows are new and become the last tokens of their requests. Their page may be NOWHERE, which means that the rows
    are not stored; checks report any other page outside the pool.
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
        """Operand names, in the order of the device's rules."""
        return self.rows, self.starts, self.lens, self.pages
