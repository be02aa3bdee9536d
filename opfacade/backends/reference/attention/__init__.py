"""Attention in torch: the fallback on every device, and the reference for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from opfacade.backends.reference.attention import promise
from opfacade.backends.reference.attention.variation import mask_starts, of_request
from opfacade.backends.reference.inference import in_inference_mode
from opfacade.backends.reference.page_table import by_token, checked, token_index
from opfacade.core.candidate import Candidate, Launcher
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._attention.scoring import Attention
from opfacade.plans.attention import (
    BatchPagedDecodeArgs,
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillArgs,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillArgs,
    BatchRaggedPrefillDescriptor,
    PagedKvAttention,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def _paged(
    descriptor: PagedKvAttention[Any], args: BatchPagedPrefillArgs | BatchPagedDecodeArgs, q_indptr: Sequence[int], causal: bool
) -> None:
    from opfacade.backends.reference.attention.softmax import attend

    cache, scoring = descriptor.paged_kv, promise.scoring(descriptor, args, causal)
    requests = checked(descriptor, args)
    k_pool, v_pool = by_token(args.k_data, cache), by_token(args.v_data, cache)
    starts = mask_starts(descriptor.op, args, q_indptr, [length for _, length in requests])
    for request, (pages, length) in enumerate(requests):
        rows = slice(q_indptr[request], q_indptr[request + 1])
        if rows.start == rows.stop:
            continue
        at = token_index(cache, pages, 0, length)
        lse = args.lse[rows] if args.lse is not None else None
        own = replace(scoring, varied=of_request(descriptor, args, rows, at, length, starts[request]))
        attend(args.q[rows], k_pool[at], v_pool[at], own, args.o[rows], lse)


def _prefill(descriptor: BatchPagedPrefillDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    def launch(args: BatchPagedPrefillArgs, workspace: object) -> None:
        _paged(descriptor, args, args.q_indptr.tolist(), descriptor.causal)

    return launch


def _decode(descriptor: BatchPagedDecodeDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    def launch(args: BatchPagedDecodeArgs, workspace: object) -> None:
        _paged(descriptor, args, range(descriptor.batch_size + 1), causal=False)

    return launch


def _ragged(descriptor: BatchRaggedPrefillDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    from opfacade.backends.reference.attention.softmax import attend

    def launch(args: BatchRaggedPrefillArgs, workspace: object) -> None:
        scoring = promise.scoring(descriptor, args, descriptor.causal)
        checked(descriptor, args)
        q_indptr, kv_indptr = args.q_indptr.tolist(), args.kv_indptr.tolist()
        starts = mask_starts(descriptor.op, args, q_indptr, [b - a for a, b in pairwise(kv_indptr)])
        for request in range(descriptor.batch_size):
            rows = slice(q_indptr[request], q_indptr[request + 1])
            keys = slice(kv_indptr[request], kv_indptr[request + 1])
            lse = args.lse[rows] if args.lse is not None else None
            own = of_request(descriptor, args, rows, (keys,), keys.stop - keys.start, starts[request])
            attend(args.q[rows], args.k[keys], args.v[keys], replace(scoring, varied=own), args.o[rows], lse)

    return launch


def _candidate(descriptor: type[Attention[Any]], launcher: Callable[[Any, Target, KernelSku, bool], Launcher]) -> Candidate:
    return Candidate(
        "reference",
        "torch",
        descriptor,
        promise.declines,
        promise.sku,
        promise.no_workspace,
        in_inference_mode(launcher),
        allocates=True,
        synchronises=True,
    )


CANDIDATES = (
    _candidate(BatchPagedPrefillDescriptor, _prefill),
    _candidate(BatchPagedDecodeDescriptor, _decode),
    _candidate(BatchRaggedPrefillDescriptor, _ragged),
)
