"""Errors of an append at arbitrary positions, which name FlashInfer's arguments instead of the derived table."""

from __future__ import annotations

from typing import Any, NamedTuple

from opfacade.compat.attending import Call
from opfacade.compat.flashinfer._append.ownership import refuse_shared
from opfacade.compat.flashinfer._append.rows import CODE, Where, index_error
from opfacade.errors import IndexDataError
from opfacade.plans.kv_cache import judged_by

_ROWS = "append_indptr"


class Append(NamedTuple):
    """One append as a call of a plan. Each row of `where` is a request with its own page."""

    op: str
    call: Call
    where: Where

    def run(self) -> None:
        try:
            with judged_by(self._judge):
                self.call.plan.run(self.call.args)
        except IndexDataError as error:
            found = _later(self, error) if error.asynchronous else _now(self, error)
            if found is None:
                raise
            raise found from None

    def _judge(self) -> None:
        """Checks the ownership of pages by the caller's table, because the plan's requests are single rows."""
        descriptor: Any = self.call.plan.descriptor
        refuse_shared(self.op, self.where, descriptor.paged_kv.page_size)


def _now(append: Append, found: IndexDataError) -> IndexDataError | None:
    """The argument that causes a row to have no page in the pool, or not to be a new row; None for another error."""
    if found.code != CODE:
        return None
    request, position, indices, indptr = append.where
    descriptor: Any = append.call.plan.descriptor
    pool, row, count = descriptor.paged_kv, found.request, descriptor.total_num_rows
    if found.argument == _ROWS:
        row = count + int((request[count:] >= 0).nonzero()[0])
        return index_error(append.op, ("batch_indices", row, int(request[row])), _past(count))
    own, at, batch, most = int(request[row]), int(position[row]), indptr.shape[0] - 1, indices.shape[0]
    if not 0 <= own < batch:
        return index_error(append.op, ("batch_indices", row, own), f"a request in [0, {batch}), or -1")
    first, stop = int(indptr[own]), int(indptr[own + 1])
    pages = max(0, stop - first)
    if not 0 <= at < pages * pool.page_size:
        allowed = f"a position in [0, {pages * pool.page_size}), the pages of its request"
        return index_error(append.op, ("positions", row, at), allowed, own)
    entry = first + at // pool.page_size
    if not 0 <= entry < most:
        end, value = (own, first) if entry < 0 else (own + 1, stop)
        return index_error(append.op, ("kv_indptr", end, value), f"an entry in [0, {most}], those of kv_indices", own)
    page = int(indices[entry])
    if 0 <= page < pool.num_total_pages:
        return None
    return index_error(append.op, ("kv_indices", entry, page), f"a page in [0, {pool.num_total_pages})", own)


def _later(append: Append, found: IndexDataError) -> IndexDataError:
    """The error of an earlier call, whose tensors may have changed since. Page -1 means that the row has no page."""
    row, when = found.request, f"(found on the device during checked call {found.call_id})"
    if found.argument == _ROWS:
        descriptor: Any = append.call.plan.descriptor
        allowed, got = _past(descriptor.total_num_rows), f"a request {when}"
        error = index_error(append.op, ("batch_indices", -1, found.value), allowed, got=got)
    elif found.value == -1:
        allowed, got = "a position in the pages of its request", f"one without a page {when}"
        error = index_error(append.op, ("positions", row, -1), allowed, got=got)
    else:
        error = index_error(append.op, ("kv_indices", -1, found.value), found.limit, got=f"{found.value} for row {row} {when}")
    error.asynchronous, error.call_id = True, found.call_id
    return error


def _past(rows: int) -> str:
    return f"-1 past the {rows} new rows"
