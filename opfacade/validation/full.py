"""Level full: before anything is written, the host reads and checks index tensors, the pages of new rows, and all valid input
elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from opfacade.base.capture import capturing, device_of
from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.operands import is_finite
from opfacade.core.request_tables import RequestTables
from opfacade.errors import ArgumentError, Issue, PlanStateError
from opfacade.validation import host, ownership
from opfacade.validation.rules import error_of, index_error, page_place, tables_of
from opfacade.validation.values import ValueGuard, bounded_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from opfacade.core.candidate import Launcher
    from opfacade.core.descriptor import Args


class FullGuard:
    """Refuses a call if the contents of its tensors are invalid. Synchronises."""

    def __init__(self, descriptor: Descriptor[Any]) -> None:
        self._descriptor = descriptor
        self._tables = tables_of(descriptor)
        self._bounds = ValueGuard(descriptor.op, bounded_of(descriptor))

    def wrap(self, launch: Launcher) -> Launcher:
        def guarded(args: Args, workspace: torch.Tensor | None) -> None:
            self._refuse_capture(args)
            self._judge(args)
            launch(args, workspace)

        return guarded

    def check(self) -> None:
        """Never raises, because every call is checked before it runs."""

    def _refuse_capture(self, args: Args) -> None:
        if capturing(device_of(args)):
            op = self._descriptor.op
            message = f"{op}.run: OPFACADE_VALIDATE=full reads tensors, and a CUDA graph is being captured. [OPF-R004]"
            raise PlanStateError(message, code="OPF-R004", op=op, stage="run", hint="Use OPFACADE_VALIDATE=indices.")

    def _judge(self, args: Args) -> None:
        tables = self._tables
        self._bounds.judge(args)
        if tables is not None:
            found = host.findings(tables, args)
            if found:
                raise error_of(tables, found)
            if tables.appends:
                _refuse_shared_pages(tables, args, ownership.judge_of_caller())
            self._descriptor.refuse_requests(args, host.request_sizes(tables, args))
        for name in operands_of(self._descriptor):
            self._values(name, args)
        if tables is not None and tables.pages:
            self._finite_pools(tables, args)

    def _values(self, name: str, args: Args) -> None:
        """Raises for an element that the descriptor's `wrong_values` reports."""
        found = self._descriptor.wrong_values(name, args)
        if found is not None and bool(found[0].any()):
            place = found[0].nonzero()[0].tolist()
            self._refuse(name, place, found[1], value=getattr(args, name)[tuple(place)].item())

    def _finite_pools(self, tables: RequestTables, args: Args) -> None:
        for name, spec in operands_of(self._descriptor).items():
            given = getattr(args, name)
            if spec.paged is None or spec.role != "in" or not given.is_floating_point():
                continue
            pool = given.movedim(spec.paged, (0, 1))
            rows = host.row_counts(tables, args)
            for request, (pages, length) in enumerate(host.requests_pages(tables, args)):
                place = _wild_token(pool, pages, host.used_keys(tables, length, rows[request]))
                if place is not None:
                    self._refuse(name, place, "finite values", request)

    def _refuse(self, name: str, place: list[int], expected: str, request: int = -1, value: object = None) -> NoReturn:
        where = f" for request {request}" if request >= 0 else ""
        got = "NaN or infinity" if value is None else str(value)
        issue = Issue("OPF-V003", f"{name}{place}", expected, f"{got}{where}")
        op = self._descriptor.op
        raise ArgumentError(f"{op}.run: {issue}", code="OPF-V003", op=op, stage="run", issues=[issue])


def _wild_token(pool: Tensor, pages: Tensor, used: range) -> list[int] | None:
    """[page, slot] of the first token in `used` with a non-finite element; None if there is none. pool: [pages, tokens per
    page, ...]."""
    size = pool.shape[1]
    for i, page in enumerate(pages.tolist()):
        first, stop = max(0, used.start - i * size), min(size, used.stop - i * size)
        if first >= stop:
            continue
        wrong = ~is_finite(pool[page, first:stop])
        if bool(wrong.any()):
            return [page, first + int(wrong.flatten(1).any(1).nonzero()[0])]
    return None


def _refuse_shared_pages(tables: RequestTables, args: Args, judge: Callable[[], None] | None) -> None:
    if judge is not None:
        judge()
        return
    found = ownership.shared_page(_page_uses(tables, args))
    if found is not None:
        use, at = found.use, page_place(tables, found.use.request, found.use.place)
        told = (tables.op, tables.pages, use.place, use.page, found.allowed, use.request)
        raise index_error(*told, code=ownership.CODE, place=at)


def _page_uses(tables: RequestTables, args: Args) -> Iterator[ownership.PageUse]:
    """The pages of every request. Positions are indices into the flat page ids, or into the request's row of a block table."""
    rows: list[int] = getattr(args, tables.rows).tolist()
    starts = getattr(args, tables.starts).tolist() if tables.starts else [0] * tables.requests
    for request, (pages, length) in enumerate(host.requests_pages(tables, args)):
        first_new = length - (rows[request + 1] - rows[request])
        for place, page in enumerate(pages.tolist()):
            if not 0 <= page < tables.num_pages:
                continue  # before the new rows, where invalid ids are allowed
            written = first_new < min(length, (place + 1) * tables.page_tokens)
            yield ownership.PageUse(request, starts[request] + place, page, written)
