"""Owners of pages, for level full: a page that receives new rows must occur once in the tables, in one request. Otherwise
writes race, or change rows that another request reads.

The check reads the tables of the append. A caller that converts each row to one request has no owners in its tables, so it
passes its own check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

CODE = "OPF-V002"


class PageUse(NamedTuple):
    """An entry of a page table. request: its request; place: the position of the entry; written: whether the page receives new
    rows."""

    request: int
    place: int
    page: int
    written: bool


class SharedPage(NamedTuple):
    """A page that occurs twice in the tables and receives new rows. use: the later entry; allowed: the expected value, for the
    message."""

    use: PageUse
    allowed: str


def shared_page(uses: Iterable[PageUse]) -> SharedPage | None:
    """The first page with several entries of which one receives new rows; None if there is no such page."""
    owners: dict[int, PageUse] = {}
    for use in uses:
        first = owners.setdefault(use.page, use)
        if first[:2] != use[:2] and (use.written or first.written):
            race = use.written and first.written
            clash = "has it twice" if first.request == use.request else "also appends to it" if race else "shares it"
            return SharedPage(use, f"a page of its own: request {first.request} {clash}")
    return None


_judge: ContextVar[Callable[[], None] | None] = ContextVar("opfacade_validation_ownership", default=None)


@contextmanager
def judged_by(judge: Callable[[], None]) -> Iterator[None]:
    """Within the block, level full calls `judge` instead of checking the tables of an append for shared pages. `judge` raises
    on an error. It is called after the other checks of the tables."""
    token = _judge.set(judge)
    try:
        yield
    finally:
        _judge.reset(token)


def judge_of_caller() -> Callable[[], None] | None:
    """The check that the caller of this append has set; None: the check of the tables."""
    return _judge.get()
