"""Owners of pages, for level full: a page that new rows go to belongs to one place of one request. Else rows race, or change
what another request reads.

The tables of an append say it, unless a caller made them of others: a table with a request for each row knows no owners. Such a
caller says how its call is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

CODE = "OPF-V002"


class PageUse(NamedTuple):
    """A page in a table: of which request, the position of its id, and whether new rows go there."""

    request: int
    place: int
    page: int
    written: bool


class SharedPage(NamedTuple):
    """A page that is in the tables twice, and new rows go there. use: the later place; allowed: in words."""

    use: PageUse
    allowed: str


def shared_page(uses: Iterable[PageUse]) -> SharedPage | None:
    """The first page of several places to one of which new rows go; None where each has one."""
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
    """Within the block level full calls `judge`, which raises, in place of looking for shared pages in the tables of an append.
    These are sound by then."""
    token = _judge.set(judge)
    try:
        yield
    finally:
        _judge.reset(token)


def judge_of_caller() -> Callable[[], None] | None:
    """How the caller of this append judges it; None: by its tables."""
    return _judge.get()
