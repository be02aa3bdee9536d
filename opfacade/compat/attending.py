"""One attention call as a plan and its args, over pages or ragged rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from opfacade import Plan
from opfacade.compat.constants import even_indptr
from opfacade.compat.dtypes import FP8, name_of
from opfacade.compat.scores import Scores
from opfacade.compat.selecting import plan_for, rounded_up
from opfacade.errors import from_issues
from opfacade.plans._attention.growth import bounds_of, ragged_split
from opfacade.plans.attention import (
    BatchPagedDecodeArgs,
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillArgs,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillArgs,
    BatchRaggedPrefillDescriptor,
    PagedKvCacheDescriptor,
)


class Call(NamedTuple):
    """A plan and its args. For several calls, `check` all of them before the first `run`; then either all run, or nothing is
    written."""

    plan: Plan[Any]
    args: Any

    def check(self) -> None:
        verdict = self.plan.can_implement(self.args)
        if not verdict:
            raise from_issues(self.plan.descriptor.op, "run", verdict.issues)

    @property
    def result(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.args.o, self.args.lse


class Pools(NamedTuple):
    """A paged cache: "NHD" `[pages, page_size, kv_heads, head_dim]` or "HND" `[pages, kv_heads, page_size, head_dim]`.

    page_grows: a page is a whole request, which may have another length in the next call."""

    k: torch.Tensor
    v: torch.Tensor
    layout: str
    page_grows: bool = False

    @property
    def facts(self) -> tuple[int, int, int, int]:
        """The number of pages, tokens per page, heads, and elements per head."""
        pages, a, b, dim = self.k.shape
        return (pages, b, a, dim) if self.layout == "HND" else (pages, a, b, dim)


class Table(NamedTuple):
    """The pages of each request: the operands of a page table, and how many pages all requests and tokens one request have.
    fixed: these numbers are the same in all later calls, as in a CUDA graph."""

    form: str
    operands: Mapping[str, torch.Tensor]
    batch: int
    max_pages: int
    max_len: int | None = None
    fixed: bool = False

    def bounds(self, page_size: int, kv_split: str | int) -> tuple[tuple[str, int | None], ...]:
        """max_kv_indices and max_kv_len. They select the kernel unless the caller fixes the split, so they stay constant while
        the requests grow."""
        pages, length, batch, page_size = self.max_pages, self.max_len, max(1, self.batch), max(1, page_size)
        if kv_split == "auto" and not self.fixed:
            found = bounds_of(batch, -(-pages * page_size // batch) if length is None else length, page_size)
            pages, length = found["max_kv_indices"], None if length is None else found["max_kv_len"]
        elif self.form == "csr" and not self.fixed:
            pages = rounded_up(pages)
        return ("max_kv_indices", pages), ("max_kv_len", length)


ALIGNMENT = 16  # bytes, as in the default of an operand


@dataclass(frozen=True, slots=True)
class Ask:
    """Further options of a call. operands: sinks, scales, masks and parameters of a variant."""

    op: str
    scores: Scores = field(default_factory=Scores)
    sm_scale: float | None = None
    kv_split: str | int = "auto"
    with_lse: bool = False
    o_dtype: torch.dtype | None = None
    operands: Mapping[str, torch.Tensor] = field(default_factory=dict)
    out: torch.Tensor | None = None
    lse: torch.Tensor | None = None


class Facts(NamedTuple):
    """The values from which a descriptor is created. sizes: its size fields; cache: pages, page size, heads, head_dim, dtype,
    layout, and whether pages grow."""

    scores: Scores
    sizes: tuple[tuple[str, Any], ...]
    cache: tuple[Any, ...] = ()


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy if its address is not aligned as plans require, for example in a part of packed rows or in one request of a
    batch."""
    return x if x.data_ptr() % ALIGNMENT == 0 else x.clone()


def over_pages(ask: Ask, q: torch.Tensor, pools: Pools, table: Table, q_indptr: torch.Tensor | None = None) -> Call:
    """Attention of q `[rows, heads, dim]` over pages. Without q_indptr, each request has one row, its last."""
    q, rows, heads = aligned(q), q.shape[0], q.shape[1]
    if q_indptr is None and (ask.scores.varies or "q_scale" in ask.operands or "packed_mask" in ask.operands):
        q_indptr = even_indptr(table.batch, 1, q.device)  # decode has neither a variant, nor a mask, nor a factor of q
    cache = (*pools.facts, name_of(ask.op, "k", pools.k.dtype), pools.layout, pools.page_grows)
    sizes = (
        ("batch_size", table.batch),
        ("page_table", table.form),
        *table.bounds(pools.facts[1], ask.kv_split),
        ("kv_scale", _kind_of_factor(ask.operands.get("k_scale"))),
        *_common(ask, q),
    )
    args: dict[str, Any] = dict(
        q=q, k_data=pools.k, v_data=pools.v, **table.operands, **ask.operands, **_outputs(ask, q, pools.v.shape[-1])
    )
    if q_indptr is None:
        plan = plan_for(_decode, Facts(ask.scores, (*sizes, ("num_qo_heads", heads)), cache), q.device)
        return Call(plan, BatchPagedDecodeArgs(**args))
    sizes = (*sizes, ("total_num_rows", rows), *_varied(ask))
    plan = plan_for(_paged, Facts(ask.scores, (*sizes, ("num_qo_heads", heads)), cache), q.device)
    return Call(plan, BatchPagedPrefillArgs(q_indptr=q_indptr, **args))


class Rows(NamedTuple):
    """K `[rows, kv_heads, dim]` and V `[rows, kv_heads, dim_vo]` of all requests, one request after the other."""

    k: torch.Tensor
    v: torch.Tensor
    indptr: torch.Tensor
    max_len: int | None = None


def over_rows(ask: Ask, q: torch.Tensor, q_indptr: torch.Tensor, keys: Rows) -> Call:
    """Attention of q `[rows, heads, dim]` over ragged K and V."""
    q, keys = aligned(q), keys._replace(k=aligned(keys.k), v=aligned(keys.v))
    (kv_rows, kv_heads, dim), dim_vo = keys.k.shape, keys.v.shape[-1]
    sizes = (
        ("batch_size", q_indptr.shape[0] - 1),
        ("total_num_rows", q.shape[0]),
        ("total_kv_rows", kv_rows),
        ("num_qo_heads", q.shape[1]),
        ("num_kv_heads", kv_heads),
        ("head_dim", dim),
        ("head_dim_vo", None if dim_vo == dim else dim_vo),
        ("dtype", name_of(ask.op, "k", keys.k.dtype)),
        ("max_kv_len", keys.max_len),
        *_varied(ask),
        *_common(replace(ask, kv_split=_split_of_rows(ask, q, q_indptr, keys)), q),
    )
    plan = plan_for(_ragged, Facts(ask.scores, sizes), q.device)
    outputs: dict[str, Any] = _outputs(ask, q, dim_vo)
    return Call(
        plan,
        BatchRaggedPrefillArgs(q=q, q_indptr=q_indptr, k=keys.k, v=keys.v, kv_indptr=keys.indptr, **ask.operands, **outputs),
    )


def _split_of_rows(ask: Ask, q: torch.Tensor, q_indptr: torch.Tensor, keys: Rows) -> str | int:
    """The split of keys. A prompt, which has as many keys as rows, keeps "auto", because its rows select the kernel. Other
    calls get a split that does not change when keys are added."""
    rows, requests, (kv_rows, kv_heads, _) = q.shape[0], q_indptr.shape[0] - 1, keys.k.shape
    if ask.kv_split != "auto" or requests < rows >= kv_rows:
        return ask.kv_split
    return ragged_split(requests * kv_heads, rows, kv_rows if keys.max_len is None else keys.max_len)


def _common(ask: Ask, q: torch.Tensor) -> tuple[tuple[str, Any], ...]:
    scale, output = ask.sm_scale, _output_dtype(ask, q)
    return (
        ("sm_scale", scale),
        ("allow_unusual_scale", scale is not None and scale <= 0),
        ("kv_split", ask.kv_split),
        ("q_dtype", name_of(ask.op, "q", q.dtype)),
        ("o_dtype", None if output == q.dtype and q.dtype not in FP8 else name_of(ask.op, "out", output)),
        ("return_lse", ask.with_lse),
        ("sinks", "sinks" in ask.operands),
    )


def _varied(ask: Ask) -> tuple[tuple[str, Any], ...]:
    return ("q_scale", _kind_of_factor(ask.operands.get("q_scale"))), ("custom_mask", "packed_mask" in ask.operands)


def _kind_of_factor(factor: torch.Tensor | None) -> str:
    return "none" if factor is None else "tensor" if factor.shape[0] == 1 else "head"


def _output_dtype(ask: Ask, q: torch.Tensor) -> torch.dtype:
    """The dtype of o: the call's, by default q's; bf16 for an fp8 q, as in flash-attn."""
    return ask.o_dtype or (torch.bfloat16 if q.dtype in FP8 else q.dtype)


def _outputs(ask: Ask, q: torch.Tensor, dim_vo: int) -> dict[str, torch.Tensor | None]:
    rows, heads, _ = q.shape
    o, lse = ask.out, ask.lse
    if o is None:
        o = torch.empty(rows, heads, dim_vo, dtype=_output_dtype(ask, q), device=q.device)
    if lse is None and ask.with_lse:
        lse = torch.empty(rows, heads, dtype=torch.float32, device=q.device)
    return {"o": o, "lse": lse}


def _decode(facts: Facts) -> BatchPagedDecodeDescriptor:
    return BatchPagedDecodeDescriptor(paged_kv=_cache(facts.cache), **dict(facts.sizes), **facts.scores.for_decode())


def _paged(facts: Facts) -> BatchPagedPrefillDescriptor:
    return BatchPagedPrefillDescriptor(paged_kv=_cache(facts.cache), **dict(facts.sizes), **facts.scores.fields())


def _ragged(facts: Facts) -> BatchRaggedPrefillDescriptor:
    return BatchRaggedPrefillDescriptor(**dict(facts.sizes), **facts.scores.fields())


def _cache(facts: tuple[Any, ...]) -> PagedKvCacheDescriptor:
    pages, page_size, kv_heads, dim, dtype, layout, page_grows = facts
    return PagedKvCacheDescriptor(
        num_total_pages=pages, page_size=page_size, num_kv_heads=kv_heads, head_dim=dim, dtype=dtype, layout=layout,
        any_page_size=page_grows,
    )  # fmt: skip
