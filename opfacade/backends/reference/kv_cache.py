"""Paged append in torch: rows are rotated or quantised first, then their bits are copied by an indexed assignment."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from opfacade.backends.reference.declared import READS_INDICES, reference
from opfacade.backends.reference.page_table import by_token, checked, token_index
from opfacade.backends.reference.rotate_and_store import AppendCall, stored_rows
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.core.request_tables import NOWHERE
from opfacade.plans.kv_cache import PagedKvAppendArgs, PagedKvAppendDescriptor

if TYPE_CHECKING:
    from torch import Tensor


def _promise(descriptor: PagedKvAppendDescriptor) -> PrecisionGuarantee:
    return PrecisionGuarantee(
        math_precision="copy" if descriptor.copies else "f32_rounded_once",
        accumulator="none",
        error_model=ErrorModel(id="exact" if descriptor.copies else "append-f32"),
        conditions=(READS_INDICES,),
    )


def _dtypes(descriptor: PagedKvAppendDescriptor) -> tuple[tuple[str, str], ...]:
    """A copy depends only on element sizes."""
    if descriptor.copies:
        return (("kv", f"b{8 * ITEMSIZE[descriptor.paged_kv.dtype]}"),)
    return (("kv", descriptor.paged_kv.dtype), ("new", descriptor.row_dtype))


def _facts(descriptor: PagedKvAppendDescriptor) -> tuple[tuple[str, str], ...]:
    """Facts that change the meaning of a result; defaults are omitted."""
    facts = (("kv_scale", descriptor.kv_scale), ("rope", descriptor.rope))
    changed = tuple((name, value) for name, value in facts if value != "none")
    return changed if descriptor.rope_dtype == "f32" else (*changed, ("rope_dtype", descriptor.rope_dtype))


def _bits(tensor: Tensor) -> Tensor:
    """A view as integers, because a copy must keep NaN payloads, and all devices can index integers."""
    import torch

    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def _append(descriptor: PagedKvAppendDescriptor, args: PagedKvAppendArgs) -> None:
    cache, requests, indptr = descriptor.paged_kv, checked(descriptor, args), args.append_indptr.tolist()
    pools = [by_token(_bits(pool), cache) for pool in (args.k_data, args.v_data)]
    descriptor.refuse_requests(args, [(indptr[r + 1] - indptr[r], length) for r, (_, length) in enumerate(requests)])
    for request, (pages, length) in enumerate(requests):
        first, stop = indptr[request], indptr[request + 1]
        page, slot = token_index(cache, pages, length - (stop - first), length)
        kept = page != NOWHERE
        rows = stored_rows(descriptor, cast("AppendCall", args), slice(first, stop), length - (stop - first))
        for pool, new in zip(pools, rows, strict=True):
            pool[page[kept], slot[kept]] = _bits(new)[kept]


CANDIDATES = (reference(PagedKvAppendDescriptor, _promise, _dtypes, _append, _facts),)
