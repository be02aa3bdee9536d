"""Paged append in torch: an indexed assignment of raw bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opfacade.backends.reference.page_table import bad_index, by_token, offsets, pages_and_lengths, token_index
from opfacade.plans.kv_cache import PagedKvAppendArgs, PagedKvAppendDescriptor
from opfacade.registry import Candidate, Launcher, Reason
from opfacade.sku import ITEMSIZE, ErrorModel, KernelSku, PrecisionGuarantee
from opfacade.target import Target

if TYPE_CHECKING:
    from torch import Tensor


def _declines(descriptor: PagedKvAppendDescriptor, target: Target) -> Sequence[Reason]:
    return ()


def _no_workspace(descriptor: PagedKvAppendDescriptor, target: Target) -> int:
    return 0


def _sku(descriptor: PagedKvAppendDescriptor, target: Target) -> KernelSku:
    return KernelSku(
        category=descriptor.category,
        op=descriptor.op,
        backend="reference",
        arch=target.arch,
        impl="torch",
        revision=1,
        dtypes=(("kv", f"b{8 * ITEMSIZE[descriptor.paged_kv.dtype]}"),),
        layout="strided",
        precision_guarantee=PrecisionGuarantee(
            math_precision="copy",
            accumulator="none",
            error_model=ErrorModel(id="exact"),
            conditions=("index tensors are read on the host",),
        ),
    )


def _bits(tensor: Tensor) -> Tensor:
    """The same memory as integers: a copy must keep NaN payloads, and integers index everywhere."""
    import torch

    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def _append(descriptor: PagedKvAppendDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    cache = descriptor.paged_kv

    def launch(args: PagedKvAppendArgs, workspace: object) -> None:
        indptr = offsets(descriptor.op, "append_indptr", args.append_indptr, descriptor.total_num_rows, exact=True)
        pages, lengths = pages_and_lengths(descriptor.op, cache, args)
        pools = [
            (by_token(_bits(pool), cache), _bits(new)) for pool, new in ((args.k_data, args.k_new), (args.v_data, args.v_new))
        ]
        for request, length in enumerate(lengths):
            if indptr[request + 1] - indptr[request] > length:
                bad_index(
                    descriptor.op, "append_indptr", request + 1, indptr[request + 1], f"at most {length} new rows", request
                )
        for request, length in enumerate(lengths):
            first, stop = indptr[request], indptr[request + 1]
            at = token_index(cache, pages[request], length - (stop - first), length)
            for pool, new in pools:
                pool[at] = new[first:stop]

    return launch


CANDIDATES = (Candidate("reference", "torch", PagedKvAppendDescriptor, _declines, _sku, _no_workspace, _append),)
