"""Level full for an append at arbitrary positions: checks the pages and positions of rows by FlashInfer's table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from opfacade.compat.flashinfer._append.rows import Where, index_error
from opfacade.plans.kv_cache import PageUse, shared_page

_CODE = "OPF-V002"


def refuse_shared(op: str, where: Where, page_size: int) -> None:
    """Raises if two rows have the same position of a request, or if a page that receives a row occurs twice in the table. Each
    stored row has a page of its request. Synchronises."""
    taken = _positions(op, where)
    found = shared_page(_uses(where, {(request, position // page_size) for request, position in taken}))
    if found is not None:
        use = found.use
        raise index_error(op, ("kv_indices", use.place, use.page), found.allowed, use.request, code=_CODE)


def _positions(op: str, where: Where) -> dict[tuple[int, int], int]:
    """{(request, position): row}."""
    taken: dict[tuple[int, int], int] = {}
    for row, place in enumerate(zip(where.request.tolist(), where.position.tolist(), strict=True)):
        request, position = place
        if request < 0:
            continue
        first = taken.setdefault(place, row)
        if first != row:
            allowed = f"a position of its own: row {first} also goes there"
            raise index_error(op, ("positions", row, position), allowed, request, code=_CODE)
    return taken


def _uses(where: Where, written: set[tuple[int, int]]) -> Iterator[PageUse]:
    """The uses of pages by every request. written: (request, index of its page) for each new row."""
    indices = where.indices.tolist()
    for request, (first, stop) in enumerate(pairwise(where.indptr.tolist())):
        for place in range(max(0, first), min(stop, len(indices))):
            yield PageUse(request, place, indices[place], (request, place - first) in written)
