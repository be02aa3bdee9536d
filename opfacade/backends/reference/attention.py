"""Attention in torch: the fallback on every device, and what the kernels are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from opfacade.backends.reference.page_table import by_token, offsets, pages_and_lengths, token_index
from opfacade.plans.attention import (
    BatchPagedDecodeArgs,
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillArgs,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillArgs,
    BatchRaggedPrefillDescriptor,
    PagedKvAttention,
)
from opfacade.registry import Candidate, Launcher, Reason
from opfacade.scoring import Attention
from opfacade.sku import ErrorModel, KernelSku, PrecisionGuarantee
from opfacade.target import Target

_SYNCHRONISES = "index tensors are read on the host"


def _declines(descriptor: Attention[Any], target: Target) -> Sequence[Reason]:
    return ()


def _no_workspace(descriptor: Attention[Any], target: Target) -> int:
    return 0


def _error_model(wide: bool) -> ErrorModel:
    """Every operation in f32 (or f64), sums in any order: the dot product and P lose one roundoff an operation."""
    u = 2.0**-53 if wide else 2.0**-24
    facts = {
        "u_acc": u,
        "k_step": 1,
        "u_p": u,
        "eta_p": 2.0**-150,
        "exp": 4 * u,
        "tanh": 4 * u,
        "tile": 2.0**31,
        "lanes": 1,
        "split": 0,
    }
    return ErrorModel(
        id="attention-f64" if wide else "attention-f32", constants=tuple(sorted((k, float(v)) for k, v in facts.items()))
    )


def _guarantee(wide: bool) -> PrecisionGuarantee:
    return PrecisionGuarantee(
        math_precision="f64" if wide else "f32",
        accumulator="f64" if wide else "f32",
        error_model=_error_model(wide),
        conditions=(_SYNCHRONISES,),
    )


def _sku(descriptor: Attention[Any], target: Target) -> KernelSku:
    return _make_sku(descriptor.op, target.arch, descriptor.kv_dtype, descriptor.query_dtype, _facts(descriptor))


def _facts(descriptor: Attention[Any]) -> tuple[tuple[str, bool | str], ...]:
    """What changes the meaning of a result, where it is not as usual."""
    kv_scale = getattr(descriptor, "kv_scale", "none")
    scaled = (("kv_scale", kv_scale),) if kv_scale != "none" else ()
    return (*scaled, ("sinks", True)) if descriptor.sinks else scaled


@lru_cache(maxsize=256)
def _make_sku(op: str, arch: str, kv_dtype: str, q_dtype: str, facts: tuple[tuple[str, bool | str], ...]) -> KernelSku:
    # One Python function serves all: the dtypes decide what is promised, and nothing is compiled in.
    return KernelSku(
        category="attention",
        op=op,
        backend="reference",
        arch=arch,
        impl="torch",
        revision=1,
        dtypes=(("kv", kv_dtype), ("o", q_dtype), ("q", q_dtype)),
        layout="strided",
        spec=facts,
        precision_guarantee=_guarantee(q_dtype == "f32"),
    )


def _scoring(descriptor: Attention[Any], args: Any, causal: bool) -> Any:
    from opfacade.backends.reference.softmax_attention import Scoring

    scales = (getattr(args, "k_scale", None), getattr(args, "v_scale", None))
    return Scoring(descriptor.scale, descriptor.logits_soft_cap, causal, descriptor.window_left, *scales, args.sinks)


def _paged(descriptor: PagedKvAttention[Any], args: Any, q_indptr: Sequence[int], causal: bool) -> None:
    from opfacade.backends.reference.softmax_attention import attend

    cache, scoring = descriptor.paged_kv, _scoring(descriptor, args, causal)
    pages, lengths = pages_and_lengths(descriptor.op, cache, args)
    k_pool, v_pool = by_token(args.k_data, cache), by_token(args.v_data, cache)
    for request, length in enumerate(lengths):
        rows = slice(q_indptr[request], q_indptr[request + 1])
        at = token_index(cache, pages[request], 0, length)
        lse = args.lse[rows] if args.lse is not None else None
        attend(args.q[rows], k_pool[at], v_pool[at], scoring, args.o[rows], lse)


def _prefill(descriptor: BatchPagedPrefillDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    def launch(args: BatchPagedPrefillArgs, workspace: object) -> None:
        q_indptr = offsets(descriptor.op, "q_indptr", args.q_indptr, descriptor.total_num_rows, exact=True)
        _paged(descriptor, args, q_indptr, descriptor.causal)

    return launch


def _decode(descriptor: BatchPagedDecodeDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    def launch(args: BatchPagedDecodeArgs, workspace: object) -> None:
        _paged(descriptor, args, range(descriptor.batch_size + 1), causal=False)

    return launch


def _ragged(descriptor: BatchRaggedPrefillDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    from opfacade.backends.reference.softmax_attention import attend

    def launch(args: BatchRaggedPrefillArgs, workspace: object) -> None:
        scoring = _scoring(descriptor, args, descriptor.causal)
        q_indptr = offsets(descriptor.op, "q_indptr", args.q_indptr, descriptor.total_num_rows, exact=True)
        kv_indptr = offsets(descriptor.op, "kv_indptr", args.kv_indptr, descriptor.total_kv_rows, exact=False)
        for request in range(descriptor.batch_size):
            rows = slice(q_indptr[request], q_indptr[request + 1])
            keys = slice(kv_indptr[request], kv_indptr[request + 1])
            lse = args.lse[rows] if args.lse is not None else None
            attend(args.q[rows], args.k[keys], args.v[keys], scoring, args.o[rows], lse)

    return launch


def _candidate(descriptor: type[Attention[Any]], launcher: Any) -> Candidate:
    return Candidate("reference", "torch", descriptor, _declines, _sku, _no_workspace, launcher)


CANDIDATES = (
    _candidate(BatchPagedPrefillDescriptor, _prefill),
    _candidate(BatchPagedDecodeDescriptor, _decode),
    _candidate(BatchRaggedPrefillDescriptor, _ragged),
)
