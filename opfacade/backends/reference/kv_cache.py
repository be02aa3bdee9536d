"""Paged append in torch: an indexed assignment of raw bits, of rows that were rotated or quantised before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opfacade.backends.reference.inference import in_inference_mode
from opfacade.backends.reference.page_table import by_token, checked, token_index
from opfacade.backends.reference.rotate_and_store import stored_rows
from opfacade.descriptor import once_a_kind
from opfacade.plans.kv_cache import PagedKvAppendArgs, PagedKvAppendDescriptor
from opfacade.registry import Candidate, Launcher, Reason
from opfacade.sku import ITEMSIZE, ErrorModel, KernelSku, PrecisionGuarantee
from opfacade.target import Target
from opfacade.validation.rules import index_error

if TYPE_CHECKING:
    from torch import Tensor


def _declines(descriptor: PagedKvAppendDescriptor, target: Target) -> Sequence[Reason]:
    return ()


def _no_workspace(descriptor: PagedKvAppendDescriptor, target: Target) -> int:
    return 0


@once_a_kind
def _sku(descriptor: PagedKvAppendDescriptor, target: Target) -> KernelSku:
    return KernelSku(
        category=descriptor.category,
        op=descriptor.op,
        backend="reference",
        arch=target.arch,
        impl="torch",
        revision=1,
        dtypes=_dtypes(descriptor),
        layout="strided",
        spec=_facts(descriptor),
        precision_guarantee=PrecisionGuarantee(
            math_precision="copy" if descriptor.copies else "f32, one rounding",
            accumulator="none",
            error_model=ErrorModel(id="exact" if descriptor.copies else "append-f32"),
            conditions=("index tensors are read on the host",),
        ),
    )


def _dtypes(descriptor: PagedKvAppendDescriptor) -> tuple[tuple[str, str], ...]:
    """A copy knows only sizes."""
    if descriptor.copies:
        return (("kv", f"b{8 * ITEMSIZE[descriptor.paged_kv.dtype]}"),)
    return (("kv", descriptor.paged_kv.dtype), ("new", descriptor.row_dtype))


def _facts(descriptor: PagedKvAppendDescriptor) -> tuple[tuple[str, str], ...]:
    """What changes the meaning of a result, where it is not as usual."""
    facts = (("kv_scale", descriptor.kv_scale), ("rope", descriptor.rope))
    changed = tuple((name, value) for name, value in facts if value != "none")
    return changed if descriptor.rope_dtype == "f32" else (*changed, ("rope_dtype", descriptor.rope_dtype))


def _bits(tensor: Tensor) -> Tensor:
    """The same memory as integers: a copy must keep NaN payloads, and integers index everywhere."""
    import torch

    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def _check_position(descriptor: PagedKvAppendDescriptor, args: Any, request: int, length: int) -> None:
    """The last new row must have its angles."""
    known = args.cos_sin_cache.shape[0]
    if length > known:
        name = "kv_lens" if descriptor.page_table == "block" else "last_page_len"
        allowed = f"a length in the {known} positions of cos_sin_cache"
        raise index_error(descriptor.op, name, request, length, allowed, request)


def _append(descriptor: PagedKvAppendDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    cache = descriptor.paged_kv

    def launch(args: PagedKvAppendArgs, workspace: object) -> None:
        requests, indptr = checked(descriptor, args), args.append_indptr.tolist()
        pools = [by_token(_bits(pool), cache) for pool in (args.k_data, args.v_data)]
        for request, (_, length) in enumerate(requests):
            if descriptor.rotated and indptr[request + 1] > indptr[request]:
                _check_position(descriptor, args, request, length)
        for request, (pages, length) in enumerate(requests):
            first, stop = indptr[request], indptr[request + 1]
            at = token_index(cache, pages, length - (stop - first), length)
            rows = stored_rows(descriptor, args, slice(first, stop), length - (stop - first))
            for pool, new in zip(pools, rows, strict=True):
                pool[at] = _bits(new)

    return launch


CANDIDATES = (
    Candidate("reference", "torch", PagedKvAppendDescriptor, _declines, _sku, _no_workspace, in_inference_mode(_append)),
)
