"""Rules of index tensors: the tables of a descriptor, and the message of each finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opfacade.core.descriptor import Descriptor
from opfacade.core.model import INT32_MAX
from opfacade.errors import MAX_ISSUES, IndexDataError, Issue

# Codes and places are those of kernels/validation/index_rules.h.
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
ROWS, KV_INDPTR, LENS, PAGES = range(4)


@dataclass(frozen=True, slots=True)
class Finding:
    """One wrong element: which rule, where, and what would be right. call: of the plan's checked launches, from 0."""

    rule: int
    place: int
    request: int
    position: int
    value: int
    limit: int
    call: int = -1


@dataclass(frozen=True, slots=True)
class Tables:
    """The index operands of one descriptor; an empty name is an absent operand.

    kv_limit: csr, the bound on kv_indptr[-1] beside the size of kv_indices; ragged, rows of k; block, total pages. Without
    max_kv_indices: the largest value for which tokens plus requests fit in an int32, because kernels add them.
    max_len: tokens of one request. window_left: attention only; -1 is none.
    """

    op: str
    rows: str
    kv_indptr: str
    lens: str
    pages: str
    batch_size: int
    total_rows: int
    page_size: int
    num_pages: int
    kv_limit: int
    max_len: int
    window_left: int = -1

    @classmethod
    def of(cls, descriptor: Descriptor[Any]) -> Tables | None:
        """None for a descriptor without index operands, or without requests."""
        operands, facts = descriptor.operands(), dict(descriptor)
        rows = next((name for name in ("q_indptr", "append_indptr") if name in operands), "")
        lens = next((name for name in ("last_page_len", "kv_lens") if name in operands), "")
        pages = next((name for name in ("kv_indices", "block_table") if name in operands), "")
        if not (rows or lens) or facts.get("batch_size", 0) == 0:
            return None
        cache = facts.get("paged_kv")
        limit = facts.get("total_kv_rows", 0)
        if cache is not None:
            bound = facts.get("max_kv_indices")
            limit = (INT32_MAX - facts["batch_size"]) // cache.page_size if bound is None else bound
        return cls(
            op=descriptor.op,
            rows=rows,
            kv_indptr="kv_indptr" if "kv_indptr" in operands else "",
            lens=lens,
            pages=pages,
            batch_size=facts["batch_size"],
            total_rows=facts.get("total_num_rows", 0),
            page_size=cache.page_size if cache is not None else 1,
            num_pages=cache.num_total_pages if cache is not None else 0,
            kv_limit=limit,
            window_left=facts.get("window_left", -1),
            max_len=descriptor.request_token_bound,  # type: ignore[attr-defined]
        )

    @property
    def names(self) -> tuple[str, str, str, str]:
        """Operand names by place."""
        return self.rows, self.kv_indptr, self.lens, self.pages

    @property
    def block(self) -> bool:
        return self.pages == "block_table"

    @property
    def appends(self) -> bool:
        return self.rows == "append_indptr"


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
    """The error for one wrong element; `call` is set when a device found it. Rows of block_table are requests. place: the
    position in words, by default as a number."""
    where = f" for request {request}" if request >= 0 else ""
    found = "" if call < 0 else f" (found on the device during checked call {call})"
    if place is None:
        place = f"{request}, {position}" if argument == "block_table" else str(position)
    issue = Issue(code, f"{argument}[{place}]", allowed, f"{value}{where}{found}", kind="IndexDataError")
    error = IndexDataError(f"{op}.run: {issue}", code=code, op=op, stage="run", issues=[issue])
    error.argument, error.request, error.position = argument, request, position
    error.value, error.limit = value, allowed
    error.asynchronous, error.call_id = call >= 0, call
    return error


def error_of(tables: Tables, findings: Sequence[Finding]) -> IndexDataError:
    """The error that tells the first finding and has all attached."""
    errors = [_one(tables, f) for f in findings[:MAX_ISSUES]]
    errors[0].issues = tuple(e.issues[0] for e in errors)
    return errors[0]


def _one(tables: Tables, found: Finding) -> IndexDataError:
    allowed, name = ALLOWED[found.rule].format(limit=found.limit), tables.names[found.place]
    return index_error(tables.op, name, found.position, found.value, allowed, found.request, found.call)


def check_mask_starts(op: str, starts: Sequence[int], q_lens: Sequence[int], kv_lens: Sequence[int], size: int) -> None:
    """mask_indptr: from 0 on, a bit for each row and key of a request, within packed_mask."""
    if starts[0] != 0:
        raise index_error(op, "mask_indptr", 0, starts[0], "0")
    for request, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
        least = starts[request] + -(-q_len * kv_len // 8)
        if starts[request + 1] < least:
            allowed = f"at least {least}, a bit for each row and key"
            raise index_error(op, "mask_indptr", request + 1, starts[request + 1], allowed, request)
    if starts[-1] > size:
        raise index_error(op, "mask_indptr", len(starts) - 1, starts[-1], f"at most {size}")
