"""Rules of index tensors, and the message of each finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opfacade.core.descriptor import Descriptor
from opfacade.core.request_tables import RequestTables
from opfacade.errors import MAX_ISSUES, IndexDataError, Issue

# The codes of rules and operands are those of kernels/validation/index_rules.h.
ALLOWED = {
    1: "0",
    2: "a value in [0, {limit}]",
    3: "at least {limit}",
    4: "a length in [1, {limit}]",
    5: "a page in [0, {limit})",
    6: "a length in [0, {limit}]",
    7: "at most {limit} new rows",
    8: "at most {limit} pages over all requests",
    9: "at most {limit}",
    10: "a request of at most {limit} tokens",
}
START, RANGE, FALLS, LAST_PAGE, PAGE, LENGTH, NEW_ROWS, ALL_PAGES, OVERLAPS, TOO_LONG = range(1, 11)
ROWS, STARTS, LENS, PAGES = range(4)


@dataclass(frozen=True, slots=True)
class Finding:
    """One invalid element: the violated rule, its position, and the limit. call: the number of the plan's checked launch, from
    0."""

    rule: int
    place: int
    request: int
    position: int
    value: int
    limit: int
    call: int = -1


def tables_of(descriptor: Descriptor[Any]) -> RequestTables | None:
    """The index operands of a descriptor; None if it has no index operands or no requests."""
    tables = descriptor.request_tables()
    return tables if tables is not None and tables.requests else None


def index_error(
    op: str,
    argument: str,
    position: int,
    value: int,
    allowed: str,
    request: int = -1,
    call: int = -1,
    code: str = "OPF-V001",
    place: str | None = None,
) -> IndexDataError:
    """The error for one invalid element. call: set if the device found it. place: the position as text; default: the number."""
    where = f" for request {request}" if request >= 0 else ""
    found = "" if call < 0 else f" (found on the device during checked call {call})"
    at = str(position) if place is None else place
    issue = Issue(code, f"{argument}[{at}]", allowed, f"{value}{where}{found}", kind="IndexDataError")
    error = IndexDataError(f"{op}.run: {issue}", code=code, op=op, stage="run", issues=[issue])
    error.argument, error.request, error.position = argument, request, position
    error.value, error.limit = value, allowed
    error.asynchronous, error.call_id = call >= 0, call
    return error


def page_place(tables: RequestTables, request: int, position: int) -> str:
    """The position of a page id as text; in a block table, (request, column)."""
    return f"{request}, {position}" if tables.block else str(position)


def error_of(tables: RequestTables, findings: Sequence[Finding]) -> IndexDataError:
    """The error for the first finding, with all findings attached."""
    errors = [_one(tables, f) for f in findings[:MAX_ISSUES]]
    errors[0].issues = tuple(e.issues[0] for e in errors)
    return errors[0]


def _one(tables: RequestTables, found: Finding) -> IndexDataError:
    allowed, name = ALLOWED[found.rule].format(limit=found.limit), tables.names[found.place]
    place = page_place(tables, found.request, found.position) if found.place == PAGES else None
    return index_error(tables.op, name, found.position, found.value, allowed, found.request, found.call, place=place)
