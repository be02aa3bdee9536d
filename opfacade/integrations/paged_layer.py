"""One attention layer of a serving engine over its own pages: append new rows, then prefill or decode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from opfacade.core.dtypes import FloatDType
from opfacade.core.model import INT32_MAX
from opfacade.integrations.tensors import dtype_of
from opfacade.plans.attention import (
    BatchPagedDecodeArgs,
    BatchPagedDecodeDescriptor,
    BatchPagedDecodePlan,
    BatchPagedPrefillArgs,
    BatchPagedPrefillDescriptor,
    BatchPagedPrefillPlan,
    PagedKvCacheDescriptor,
)
from opfacade.plans.kv_cache import PagedKvAppendArgs, PagedKvAppendDescriptor, PagedKvAppendPlan


@dataclass(frozen=True, slots=True)
class Pool:
    """K and V of a layer, [pages, kv_heads, page_size, dim] ("HND") or [pages, page_size, kv_heads, dim] ("NHD").

    scales: (k_scale, v_scale) of an fp8 cache, f32 [1] each.
    """

    way: str
    k: Tensor
    v: Tensor
    layout: Literal["HND", "NHD"]
    scales: tuple[Tensor, Tensor] | None = None

    @property
    def descriptor(self) -> PagedKvCacheDescriptor:
        pages, first, second, dim = self.k.shape
        heads, size = (first, second) if self.layout == "HND" else (second, first)
        dtype = dtype_of(self.way, "kv_cache", self.k)
        return PagedKvCacheDescriptor(
            num_total_pages=pages, page_size=size, num_kv_heads=heads, head_dim=dim, dtype=dtype, layout=self.layout
        )

    @property
    def fields(self) -> dict[str, Any]:
        return {"paged_kv": self.descriptor, "page_table": "block", "kv_scale": "none" if self.scales is None else "tensor"}

    @property
    def operands(self) -> dict[str, Any]:
        k_scale, v_scale = self.scales or (None, None)
        return {"k_data": self.k, "v_data": self.v, "k_scale": k_scale, "v_scale": v_scale}


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a step; every tensor is i32 on the device; requests of length 0 may pad it.

    q_indptr [batch + 1], block_table [batch, pages], kv_lens [batch], new rows counted. max_kv_len: bound for all steps that
    share a plan, so that captured graphs stay right. decodes: each request has one row, row b.
    """

    q_indptr: Tensor
    block_table: Tensor
    kv_lens: Tensor
    max_kv_len: int
    decodes: bool
    causal: bool = True

    def bounds(self, page_size: int) -> dict[str, int]:
        """Sizes of a plan. Long requests together may exceed the 2^31 - 1 tokens that a page table can hold: none has more."""
        batch = self.kv_lens.shape[0]
        most = min(batch * -(-self.max_kv_len // page_size), INT32_MAX // page_size)
        return {"batch_size": batch, "max_kv_indices": most}

    @property
    def table(self) -> dict[str, Tensor]:
        return {"block_table": self.block_table, "kv_lens": self.kv_lens}


@dataclass(frozen=True, slots=True)
class Layer:
    """Score parameters of a layer. sinks [heads] f32. window_left: number of keys that a row sees before its own; -1 is all."""

    num_heads: int
    scale: float
    window_left: int = -1
    soft_cap: float = 0.0
    sinks: Tensor | None = None

    def append(self, pool: Pool, requests: Requests, k_new: Tensor, v_new: Tensor) -> None:
        """k_new, v_new [rows, kv_heads, dim] become the last rows of each request."""
        row_dtype: FloatDType = dtype_of(pool.way, "key", k_new)
        fields = pool.fields | requests.bounds(pool.descriptor.page_size) | {"new_dtype": row_dtype}
        if row_dtype == pool.descriptor.dtype:
            fields["kv_scale"] = "none"
        plan = PagedKvAppendPlan.select(PagedKvAppendDescriptor(total_num_rows=k_new.shape[0], **fields))
        operands = (pool if fields["kv_scale"] == "tensor" else replace(pool, scales=None)).operands
        new = {"k_new": k_new, "v_new": v_new, "append_indptr": requests.q_indptr}
        plan.run(PagedKvAppendArgs(**new, **operands, **requests.table))

    def attend(self, pool: Pool, requests: Requests, q: Tensor, o: Tensor) -> None:
        """q, o [rows, heads, dim]; rows of no request are not written."""
        page_size = pool.descriptor.page_size
        common = pool.fields | requests.bounds(page_size) | self._fields(dtype_of(pool.way, "query", q))
        common["max_kv_len"] = requests.max_kv_len
        operands = {"q": q, "o": o, "sinks": self.sinks} | pool.operands | requests.table
        if requests.decodes:
            BatchPagedDecodePlan.select(BatchPagedDecodeDescriptor(**common)).run(BatchPagedDecodeArgs(**operands))
        else:
            descriptor = BatchPagedPrefillDescriptor(total_num_rows=q.shape[0], causal=requests.causal, **common)
            BatchPagedPrefillPlan.select(descriptor).run(BatchPagedPrefillArgs(q_indptr=requests.q_indptr, **operands))

    def _fields(self, q_dtype: FloatDType) -> dict[str, Any]:
        return {
            "num_qo_heads": self.num_heads, "sm_scale": self.scale, "window_left": self.window_left,
            "logits_soft_cap": self.soft_cap, "sinks": self.sinks is not None, "return_lse": False, "q_dtype": q_dtype,
        }  # fmt: skip
