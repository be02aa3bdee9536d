"""Shared code of ops over requests: the lengths of the requests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from opfacade.plans._attention.work import rows_each
from opfacade.testing.families._request_inputs import draw_kv_lengths, indptr, paged, split_total
from opfacade.testing.harness import Harness, HasLengths
from opfacade.testing.inputs import Draw, DrawnLengths

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Descriptor


class RequestsHarness(Harness):
    """The harness of ops over requests with separate rows and keys."""

    # The name of the indptr operand of the rows; "" if all requests have equally many rows.
    rows = ""
    # True if the rows are the last tokens of their request, so that a request has at least as many keys as rows.
    rows_are_keys = False

    def inputs(self, draw: Draw) -> None:
        descriptor, lengths = draw.descriptor, draw.lengths
        q = lengths.q if lengths.q is not None else self._row_counts(draw)
        if self.rows:
            draw.values[self.rows] = indptr(draw, q)
        kv = lengths.kv if lengths.kv is not None else _key_counts(draw, q if self.rows_are_keys else [0] * len(q))
        draw.values.update(paged(draw, kv) if hasattr(descriptor, "paged_kv") else {"kv_indptr": indptr(draw, kv)})
        self.request_inputs(draw, list(zip(q, kv, strict=True)))

    def request_inputs(self, draw: Draw, requests: Sequence[tuple[int, int]]) -> None:
        """Draws the operands other than the index operands. `requests` contains (rows, keys) of each request."""

    def _row_counts(self, draw: Draw) -> list[int]:
        batch = draw.descriptor.batch_size
        return (
            split_total(draw.rng, draw.descriptor.total_num_rows, batch) if self.rows else [rows_each(draw.descriptor)] * batch
        )

    def lengths(self, descriptor: Any) -> DrawnLengths:
        batch, tokens = descriptor.batch_size, _tokens(descriptor)
        if not batch:
            return DrawnLengths()
        q = tuple(_shares(descriptor.total_num_rows, batch)) if self.rows else None
        size = descriptor.paged_kv.page_size if hasattr(descriptor, "paged_kv") else 1
        kv = [pages * size for pages in _shares(tokens // size, batch)]
        least = q if q is not None and self.rows_are_keys else [0] * batch
        most = getattr(descriptor, "max_kv_len", None)
        kv = kv if most is None else [min(length, most) for length in kv]
        return DrawnLengths(q=q, kv=tuple(max(pair) for pair in zip(kv, least, strict=True)))

    def lengths_of_call(self, descriptor: Any, args: Any) -> DrawnLengths | None:
        q = _steps(getattr(args, self.rows)) if self.rows else None
        if getattr(args, "kv_lens", None) is not None:
            return DrawnLengths(q=q, kv=tuple(args.kv_lens.tolist()))
        counts = _steps(args.kv_indptr)
        if not hasattr(descriptor, "paged_kv"):
            return DrawnLengths(q=q, kv=counts)
        size, last = descriptor.paged_kv.page_size, args.last_page_len.tolist()
        kv = tuple((count - 1) * size + end if count else 0 for count, end in zip(counts, last, strict=True))
        return DrawnLengths(q=q, kv=kv)

    def label(self, descriptor: Descriptor[Any], lengths: HasLengths) -> str:
        words = [descriptor.op.removeprefix("paged_")]
        words += [f"{len(lengths.kv)}x"] if lengths.kv else []
        words += [f"{name}{_range(values)}" for name, values in (("q", lengths.q), ("kv", lengths.kv)) if values]
        return " ".join([*words, *self.heads(descriptor, lengths), *_storage(descriptor)])

    def heads(self, descriptor: Descriptor[Any], lengths: HasLengths) -> Iterator[str]:
        """The part of a label between lengths and storage."""
        if hasattr(descriptor, "total_num_rows") and not lengths.q:
            yield f"r{descriptor.total_num_rows}"


def _storage(descriptor: Any) -> tuple[str, ...]:
    cache = getattr(descriptor, "paged_kv", None)
    return (descriptor.dtype,) if cache is None else (f"page{cache.page_size}", cache.dtype)


def _tokens(descriptor: Any) -> int:
    if not hasattr(descriptor, "paged_kv"):
        return int(descriptor.total_kv_rows)
    pages, bound = descriptor.paged_kv.num_total_pages, descriptor.max_kv_indices
    return int((pages if bound is None else min(bound, pages)) * descriptor.paged_kv.page_size)


def _key_counts(draw: Draw, least: Sequence[int]) -> list[int]:
    descriptor = draw.descriptor
    most = getattr(descriptor, "max_kv_len", None)
    drawn = (
        draw_kv_lengths(draw, least)
        if hasattr(descriptor, "paged_kv")
        else split_total(draw.rng, descriptor.total_kv_rows, descriptor.batch_size)
    )
    return drawn if most is None else [min(length, most) for length in drawn]


def _shares(total: int, parts: int) -> list[int]:
    return [total // parts + (i < total % parts) for i in range(parts)]


def _steps(indptr: Tensor) -> tuple[int, ...]:
    ends = indptr.tolist()
    return tuple(b - a for a, b in itertools.pairwise(ends))


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"
