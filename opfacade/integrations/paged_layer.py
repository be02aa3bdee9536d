"""One attention layer of a serving engine, over the engine's pages: append new rows, then prefill or decode."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from opfacade.core.dtypes import FloatDType
from opfacade.core.model import INT32_MAX
from opfacade.integrations.slots import Places
from opfacade.integrations.step_memo import StepMemo
from opfacade.integrations.tensors import dtype_of
from opfacade.plans._attention.variant import Variant, kv_pos, per_row, q_pos
from opfacade.plans.attention import (
    BatchPagedDecodeArgs,
    BatchPagedDecodeDescriptor,
    BatchPagedDecodePlan,
    BatchPagedPrefillArgs,
    BatchPagedPrefillDescriptor,
    BatchPagedPrefillPlan,
    PagedKvCacheDescriptor,
)
from opfacade.plans.kv_cache import PagedKvAppendArgs, PagedKvAppendDescriptor, PagedKvAppendPlan, judged_by

# An upper bound on the keys after a row; a position plus this bound still fits in an i32.
EVERYTHING = 2**30
EACH_ITS_OWN = Variant(mask=kv_pos <= q_pos + per_row("ahead"))


@dataclass(frozen=True, slots=True)
class Pool:
    """K and V of a layer, [pages, kv_heads, page_size, dim] ("HND") or [pages, page_size, kv_heads, dim] ("NHD").

    scales: (k_scale, v_scale) of an fp8 cache, each f32 [1]."""

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

    q_indptr [batch + 1], block_table [batch, pages], kv_lens [batch] including the new rows. max_kv_len: the bound for all
    steps that share a plan, so that captured graphs stay valid. decodes: each request has exactly one row, and row b belongs to
    request b. causal: for all requests, or a tensor [batch] in which 0 marks a request whose rows also see later keys."""

    q_indptr: Tensor
    block_table: Tensor
    kv_lens: Tensor
    max_kv_len: int
    decodes: bool
    causal: bool | Tensor = True
    memo: StepMemo = field(default_factory=StepMemo)

    def bounds(self, page_size: int) -> dict[str, int]:
        """The size fields of a plan. A page table holds at most 2^31 - 1 tokens, so the bound for all requests together is
        capped there."""
        batch = self.kv_lens.shape[0]
        most = min(batch * -(-self.max_kv_len // page_size), INT32_MAX // page_size)
        return {"batch_size": batch, "max_kv_indices": most}

    @property
    def table(self) -> dict[str, Tensor]:
        return {"block_table": self.block_table, "kv_lens": self.kv_lens}

    def ahead(self, causal: Tensor, rows: int, reach: int) -> Tensor:
        """[1, rows] i32: the number of keys after its own that each row sees; `reach` if its request is not causal."""
        row = torch.arange(rows, dtype=torch.int32, device=causal.device)
        request = torch.searchsorted(self.q_indptr[1:], row, right=True).clamp_(max=causal.shape[0] - 1)
        return torch.where(causal[request] != 0, 0, reach).to(torch.int32)[None]


@dataclass(frozen=True, slots=True)
class Layer:
    """Score parameters of a layer. sinks [heads] in any float dtype: each call converts them to f32, because an engine may load
    weights in place later. window_left: the number of keys that a row sees before its own position, and also after it if it is
    not causal; -1: all."""

    num_heads: int
    scale: float
    window_left: int = -1
    soft_cap: float = 0.0
    sinks: Tensor | None = None

    def append(self, pool: Pool, places: Places, k_new: Tensor, v_new: Tensor) -> None:
        """Writes k_new and v_new [rows, kv_heads, dim] to their slots in the cache."""
        row_dtype: FloatDType = dtype_of(pool.way, "key", k_new)
        fields = pool.fields | places.bounds | {"new_dtype": row_dtype}
        if row_dtype == pool.descriptor.dtype:
            fields["kv_scale"] = "none"
        operands = (pool if fields["kv_scale"] == "tensor" else replace(pool, scales=None)).operands
        args = PagedKvAppendArgs(k_new=k_new, v_new=v_new, **operands, **places.table)
        with judged_by(lambda: places.refuse_shared(pool.way)):
            PagedKvAppendPlan.select(PagedKvAppendDescriptor(**fields)).run(args)

    def attend(self, pool: Pool, requests: Requests, q: Tensor, o: Tensor) -> None:
        """q, o [rows, heads, dim]; rows that belong to no request are not written."""
        page_size = pool.descriptor.page_size
        common = pool.fields | requests.bounds(page_size) | self._fields(dtype_of(pool.way, "query", q))
        common["max_kv_len"] = requests.max_kv_len
        sinks = None if self.sinks is None else self.sinks.detach().float()
        operands = {"q": q, "o": o, "sinks": sinks} | pool.operands | requests.table
        if requests.decodes:  # no key comes after the last row of a request
            BatchPagedDecodePlan.select(BatchPagedDecodeDescriptor(**common)).run(BatchPagedDecodeArgs(**operands))
        else:
            seen, more = self._seen(requests, q.shape[0])
            descriptor = BatchPagedPrefillDescriptor(total_num_rows=q.shape[0], **seen, **common)
            args = BatchPagedPrefillArgs(q_indptr=requests.q_indptr, **operands, **more)
            BatchPagedPrefillPlan.select(descriptor).run(args)

    def _seen(self, requests: Requests, rows: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The descriptor fields that determine which keys a row sees, and the operands for them."""
        causal, window = requests.causal, self.window_left
        if isinstance(causal, Tensor):
            reach = min(window, EVERYTHING) if window >= 0 else EVERYTHING
            ahead = requests.memo.get(reach, self, causal, lambda: requests.ahead(causal, rows, reach))
            return {"causal": False, "variant": EACH_ITS_OWN}, {"row_params": ahead}
        if causal or not 0 <= window < EVERYTHING:
            return {"causal": causal}, {}
        return {"causal": False, "variant": symmetric(window)}, {}

    def _fields(self, q_dtype: FloatDType) -> dict[str, Any]:
        return {
            "num_qo_heads": self.num_heads, "sm_scale": self.scale, "window_left": self.window_left,
            "logits_soft_cap": self.soft_cap, "sinks": self.sinks is not None, "return_lse": False, "q_dtype": q_dtype,
        }  # fmt: skip


@lru_cache(maxsize=64)
def symmetric(window: int) -> Variant:
    """The number of keys after a row, which equals the window before the row."""
    return Variant(mask=kv_pos <= q_pos + window)
