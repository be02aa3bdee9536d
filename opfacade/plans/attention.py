"""Attention over a KV cache: paged prefill, paged decode, ragged prefill. docs/design.md defines the edge cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.dtypes import FloatDType
from opfacade.core.model import Count, Size
from opfacade.core.operands import Dim, TensorSpec, index_spec
from opfacade.core.request_tables import RequestTables
from opfacade.plan import Plan
from opfacade.plans._attention.kv_shard import KvShard, Sharded
from opfacade.plans._attention.number_scales import ScaledArgs
from opfacade.plans._attention.paging import KvScale, check_scale, page_table_operands, scale_operands
from opfacade.plans._attention.paging import PagedKvCacheDescriptor as PagedKvCacheDescriptor
from opfacade.plans._attention.prefix_exchange import Heads, PrefixExchange
from opfacade.plans._attention.scoring import ArgsT, Attention, PagedAttention, ScaledQuery, Varied
from opfacade.plans._attention.variant_examples import alibi, document_mask
from opfacade.plans._attention.zigzag import PrefillShares as PrefillShares

__all__ = [
    "BatchPagedDecodeArgs", "BatchPagedDecodeDescriptor", "BatchPagedDecodePlan",
    "BatchPagedPrefillArgs", "BatchPagedPrefillDescriptor", "BatchPagedPrefillPlan",
    "BatchRaggedPrefillArgs", "BatchRaggedPrefillDescriptor", "BatchRaggedPrefillPlan",
    "Heads", "KvShard", "PagedKvCacheDescriptor", "PrefillShares", "PrefixExchange",
]  # fmt: skip

if TYPE_CHECKING:
    from torch import Tensor


class PagedKvAttention(PagedAttention[ArgsT]):
    """Attention over a paged cache of K and V.

    kv_scale: an fp8 cache contains K / k_scale and V / v_scale: with "tensor", one scale for each of the two; with "head", one
    scale per KV head; with "none", the scale 1. K and V are the exact products; scales are positive and finite."""

    later: ClassVar[frozenset[str]] = Attention.later | {"kv_scale"}
    paged_kv: PagedKvCacheDescriptor = Field(description="The pools of K and V.")
    kv_scale: KvScale = Field(
        default="none", description='fp8 pools contain K / k_scale and V / v_scale: one scale, one per head, or 1 ("none").'
    )

    @model_validator(mode="after")
    def _scaled(self) -> PagedKvAttention[ArgsT]:
        check_scale(self.kv_scale, self.paged_kv.dtype)
        return self

    @property
    def kv_heads(self) -> int:
        return self.paged_kv.num_kv_heads

    @property
    def dim(self) -> int:
        return self.paged_kv.head_dim

    def _cache(self) -> dict[str, TensorSpec]:
        pools = {"k_data": self.paged_kv.pool_spec("in"), "v_data": self.paged_kv.pool_spec("in")}
        table = page_table_operands(self.page_table, self.batch_size)
        return pools | table | scale_operands(self.kv_scale, self.kv_heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPagedPrefillArgs(ScaledArgs):
    q: Tensor
    q_indptr: Tensor
    k_data: Tensor
    v_data: Tensor
    kv_indptr: Tensor | None = None
    kv_indices: Tensor | None = None
    last_page_len: Tensor | None = None
    block_table: Tensor | None = None
    kv_lens: Tensor | None = None
    k_scale: Tensor | float | None = None
    v_scale: Tensor | float | None = None
    q_scale: Tensor | float | None = None
    sinks: Tensor | None = None
    head_params: Tensor | None = None
    row_params: Tensor | None = None
    key_params: Tensor | None = None
    packed_mask: Tensor | None = None
    mask_indptr: Tensor | None = None
    o: Tensor
    lse: Tensor | None = None


class BatchPagedPrefillDescriptor(PagedKvAttention[BatchPagedPrefillArgs], ScaledQuery, Varied):
    """softmax(scale * q k^T) v for the last q_len rows of each request, over its pages."""

    op: Literal["paged_prefill"] = Field(default="paged_prefill", description="The operator.")
    later: ClassVar[frozenset[str]] = PagedKvAttention.later | {"q_scale", *Varied.model_fields}
    owners: ClassVar[Mapping[str, str]] = MappingProxyType({"q": "q_indptr"})
    sizes: ClassVar[frozenset[str]] = PagedKvAttention.sizes | {"total_num_rows"}
    total_num_rows: Count = Field(description="Rows of q over all requests.")
    causal: bool = Field(description="Row i of a request sees the keys j <= i + kv_len - q_len.")

    def request_tables(self) -> RequestTables:
        return replace(super().request_tables(), rows="q_indptr", total_rows=self.total_num_rows)

    def operands(self) -> dict[str, TensorSpec]:
        rows = Dim("total_num_rows", self.total_num_rows)
        indptr = {"q_indptr": index_spec(Dim("batch_size+1", self.batch_size + 1))}
        inputs = {"q": self._query(rows)} | indptr | self._cache() | self._query_scale() | self._sinks()
        return inputs | self._more(self._heads, rows, self.paged_kv.token_dims, self.batch_size) | self._outputs(rows)


class BatchPagedPrefillPlan(Plan[BatchPagedPrefillArgs]):
    """Prefill over a paged cache: attention of the last rows of each request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPagedDecodeArgs(ScaledArgs):
    q: Tensor
    k_data: Tensor
    v_data: Tensor
    kv_indptr: Tensor | None = None
    kv_indices: Tensor | None = None
    last_page_len: Tensor | None = None
    block_table: Tensor | None = None
    kv_lens: Tensor | None = None
    k_scale: Tensor | float | None = None
    v_scale: Tensor | float | None = None
    sinks: Tensor | None = None
    o: Tensor
    lse: Tensor | None = None


class BatchPagedDecodeDescriptor(PagedKvAttention[BatchPagedDecodeArgs], Sharded):
    """One query row per request, at the end of its context: softmax(scale * q k^T) v over its pages."""

    op: Literal["paged_decode"] = Field(default="paged_decode", description="The operator.")
    later: ClassVar[frozenset[str]] = PagedKvAttention.later | {"shard"}

    def operands(self) -> dict[str, TensorSpec]:
        rows = Dim("batch_size", self.batch_size)
        return {"q": self._query(rows)} | self._cache() | self._sinks() | self._outputs(rows)


class BatchPagedDecodePlan(Plan[BatchPagedDecodeArgs]):
    """Decode over a paged cache: attention of one row for each request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRaggedPrefillArgs(ScaledArgs):
    q: Tensor
    q_indptr: Tensor
    k: Tensor
    v: Tensor
    kv_indptr: Tensor
    q_scale: Tensor | float | None = None
    sinks: Tensor | None = None
    head_params: Tensor | None = None
    row_params: Tensor | None = None
    key_params: Tensor | None = None
    packed_mask: Tensor | None = None
    mask_indptr: Tensor | None = None
    o: Tensor
    lse: Tensor | None = None


class BatchRaggedPrefillDescriptor(Attention[BatchRaggedPrefillArgs], ScaledQuery, Varied):
    """softmax(scale * q k^T) v with K and V as contiguous rows: request b has rows kv_indptr[b] to kv_indptr[b+1] - 1."""

    op: Literal["ragged_prefill"] = Field(default="ragged_prefill", description="The operator.")
    later: ClassVar[frozenset[str]] = Attention.later | {"q_scale", "head_dim_vo", *Varied.model_fields}
    sizes: ClassVar[frozenset[str]] = Attention.sizes | {"batch_size", "total_num_rows", "total_kv_rows"}
    owners: ClassVar[Mapping[str, str]] = MappingProxyType({"q": "q_indptr", "k": "kv_indptr", "v": "kv_indptr"})
    batch_size: Count = Field(description="Number of requests, 0 or more.")
    total_num_rows: Count = Field(description="Rows of q over all requests.")
    total_kv_rows: Count = Field(description="Rows of k and v over all requests.")
    num_kv_heads: Size = Field(description="KV heads.")
    head_dim: Size = Field(description="Elements of a head of q and k.")
    head_dim_vo: Size | None = Field(default=None, description="Elements of a head of v and o; None: head_dim.")
    causal: bool = Field(description="Row i of a request sees the keys j <= i + kv_len - q_len.")
    dtype: FloatDType = Field(description="Element type of k and v.")

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads

    @property
    def dim(self) -> int:
        return self.head_dim

    @property
    def dim_vo(self) -> int:
        return self.head_dim if self.head_dim_vo is None else self.head_dim_vo

    @property
    def kv_dtype(self) -> FloatDType:
        return self.dtype

    @property
    def kv_token_bound(self) -> int:
        return self.total_kv_rows

    @property
    def request_token_bound(self) -> int:
        return self.total_kv_rows if self.max_kv_len is None else min(self.total_kv_rows, self.max_kv_len)

    def request_tables(self) -> RequestTables:
        return RequestTables(
            op=self.op,
            requests=self.batch_size,
            rows="q_indptr",
            starts="kv_indptr",
            total_rows=self.total_num_rows,
            limit=self.total_kv_rows,
            max_len=self.request_token_bound,
            window=self.window_left,
        )

    def operands(self) -> dict[str, TensorSpec]:
        rows, kv_rows = Dim("total_num_rows", self.total_num_rows), Dim("total_kv_rows", self.total_kv_rows)
        indptr = index_spec(Dim("batch_size+1", self.batch_size + 1))
        heads = Dim("num_kv_heads", self.num_kv_heads)
        k = TensorSpec((kv_rows, heads, Dim("head_dim", self.head_dim)), self.dtype)
        v = TensorSpec((kv_rows, heads, self._value_dim), self.dtype)
        inputs = {"q": self._query(rows), "q_indptr": indptr, "k": k, "v": v, "kv_indptr": indptr}
        more = self._more(self._heads, rows, (kv_rows,), self.batch_size)
        return inputs | self._query_scale() | self._sinks() | more | self._outputs(rows)


class BatchRaggedPrefillPlan(Plan[BatchRaggedPrefillArgs]):
    """Prefill over contiguous rows of K and V."""


_LLAMA_8B = PagedKvCacheDescriptor(num_total_pages=512, page_size=16, num_kv_heads=8, head_dim=128, dtype="bf16", layout="HND")
_ODD = PagedKvCacheDescriptor(num_total_pages=67, page_size=5, num_kv_heads=1, head_dim=64, dtype="f16", layout="NHD")
_SLIDING = PagedKvCacheDescriptor(num_total_pages=64, page_size=16, num_kv_heads=2, head_dim=64, dtype="bf16", layout="HND")
_FP8 = PagedKvCacheDescriptor(num_total_pages=64, page_size=16, num_kv_heads=2, head_dim=128, dtype="f8_e4m3", layout="HND")

EXAMPLES: tuple[Attention[Any], ...] = (
    BatchPagedPrefillDescriptor(batch_size=3, total_num_rows=700, num_qo_heads=32, causal=True, paged_kv=_LLAMA_8B),
    BatchPagedPrefillDescriptor(
        batch_size=5, total_num_rows=63, num_qo_heads=7, causal=False, paged_kv=_ODD, page_table="block", window_left=40
    ),
    BatchPagedPrefillDescriptor(
        batch_size=3, total_num_rows=40, num_qo_heads=8, causal=True, paged_kv=_FP8, q_dtype="bf16", kv_scale="head"
    ),
    BatchPagedPrefillDescriptor(
        batch_size=3, total_num_rows=40, num_qo_heads=16, causal=True, paged_kv=_SLIDING, window_left=127, sinks=True
    ),
    BatchPagedDecodeDescriptor(batch_size=16, num_qo_heads=32, paged_kv=_LLAMA_8B),
    BatchPagedDecodeDescriptor(
        batch_size=7, num_qo_heads=7, paged_kv=_ODD, page_table="block", kv_split=100, logits_soft_cap=30.0
    ),
    BatchPagedDecodeDescriptor(batch_size=7, num_qo_heads=16, paged_kv=_FP8, q_dtype="bf16", kv_scale="head"),
    BatchPagedDecodeDescriptor(batch_size=7, num_qo_heads=16, paged_kv=_SLIDING, window_left=127, sinks=True),
    BatchRaggedPrefillDescriptor(
        batch_size=4, total_num_rows=1000, total_kv_rows=1000, num_qo_heads=8, num_kv_heads=2, head_dim=128,
        causal=True, dtype="bf16",
    ),
    BatchRaggedPrefillDescriptor(
        batch_size=2, total_num_rows=63, total_kv_rows=131, num_qo_heads=5, num_kv_heads=1, head_dim=64, causal=False,
        dtype="f16",
    ),
    BatchRaggedPrefillDescriptor(
        batch_size=2, total_num_rows=63, total_kv_rows=80, num_qo_heads=16, num_kv_heads=2, head_dim=64, causal=True,
        dtype="bf16", sinks=True,
    ),
    BatchPagedPrefillDescriptor(
        batch_size=3, total_num_rows=63, num_qo_heads=8, causal=True, paged_kv=_SLIDING, variant=alibi(8)
    ),
    BatchPagedPrefillDescriptor(
        batch_size=3,
        total_num_rows=63,
        num_qo_heads=7,
        causal=False,
        paged_kv=_ODD,
        page_table="block",
        variant=document_mask(),
        custom_mask=True,
    ),
    BatchRaggedPrefillDescriptor(
        batch_size=2, total_num_rows=300, total_kv_rows=300, num_qo_heads=8, num_kv_heads=2, head_dim=128, causal=True,
        dtype="bf16", variant=document_mask(),
    ),
    BatchRaggedPrefillDescriptor(
        batch_size=3, total_num_rows=63, total_kv_rows=131, num_qo_heads=5, num_kv_heads=1, head_dim=64, causal=False,
        dtype="f16", variant=alibi(5), custom_mask=True,
    ),
    BatchRaggedPrefillDescriptor(
        batch_size=3, total_num_rows=300, total_kv_rows=700, num_qo_heads=16, num_kv_heads=16, head_dim=192,
        head_dim_vo=128, causal=True, dtype="bf16",
    ),
    BatchPagedPrefillDescriptor(
        batch_size=3, total_num_rows=40, num_qo_heads=8, causal=True, paged_kv=_FP8, kv_scale="head", q_scale="tensor"
    ),
    BatchRaggedPrefillDescriptor(
        batch_size=2, total_num_rows=63, total_kv_rows=131, num_qo_heads=5, num_kv_heads=1, head_dim=128, causal=False,
        dtype="f8_e4m3", q_scale="tensor", o_dtype="f16",
    ),
)  # fmt: skip
