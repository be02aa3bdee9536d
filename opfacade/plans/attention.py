"""Attention over a KV cache: paged prefill, paged decode, ragged prefill. See docs/design.md for the meaning at the edges."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from opfacade.descriptor import Args, Descriptor
from opfacade.model import INT32_MAX, Count, Integer, Real, Size, as_index
from opfacade.operands import Dim, TensorSpec, index_spec
from opfacade.paging import PagedKvCacheDescriptor, PageTable, check_token_bound, page_table_operands
from opfacade.plan import Plan
from opfacade.sku import DType

if TYPE_CHECKING:
    from torch import Tensor

ArgsT = TypeVar("ArgsT", bound=Args)
KvSplit = Annotated[Literal["auto", "off"] | Annotated[int, Field(ge=1, le=INT32_MAX)], BeforeValidator(as_index)]


class Attention(Descriptor[ArgsT]):
    """What every attention has in common.

    sm_scale: factor on q.k; None is 1/sqrt(head_dim). Zero and negative factors need allow_unusual_scale.
    kv_split: "auto" shares long contexts over the device, "off" never splits, an int is a fixed chunk in tokens.
    window_left: w >= 0 hides keys more than w positions before the row's own; -1 is no window.
    logits_soft_cap: c > 0 replaces a score s by c*tanh(s/c); 0 is no cap.
    q_dtype: dtype of q and o; None is the cache's.  return_lse: also write the log-sum-exp.
    """

    num_qo_heads: Size
    sm_scale: Real | None = None
    allow_unusual_scale: bool = False
    kv_split: KvSplit = "auto"
    window_left: Annotated[Integer, Field(ge=-1, le=INT32_MAX)] = -1
    logits_soft_cap: Annotated[Real, Field(ge=0)] = 0.0
    q_dtype: DType | None = None
    return_lse: bool = True

    @model_validator(mode="after")
    def _attention(self) -> Attention[ArgsT]:
        if self.num_qo_heads % self.kv_heads:
            raise ValueError(f"num_qo_heads={self.num_qo_heads} is not a multiple of num_kv_heads={self.kv_heads}")
        if self.sm_scale is not None and self.sm_scale <= 0 and not self.allow_unusual_scale:
            raise ValueError(f"sm_scale={self.sm_scale} is not positive; set allow_unusual_scale=True if it is meant")
        return self

    @property
    def kv_heads(self) -> int:
        raise NotImplementedError

    @property
    def dim(self) -> int:
        raise NotImplementedError

    @property
    def kv_dtype(self) -> DType:
        raise NotImplementedError

    @property
    def query_dtype(self) -> DType:
        return self.q_dtype or self.kv_dtype

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_qo_heads // self.kv_heads

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.dim) if self.sm_scale is None else self.sm_scale

    def _query(self, rows: Dim) -> TensorSpec:
        return TensorSpec((rows, Dim("num_qo_heads", self.num_qo_heads), Dim("head_dim", self.dim)), self.query_dtype)

    def _outputs(self, rows: Dim) -> dict[str, TensorSpec]:
        heads, dim = Dim("num_qo_heads", self.num_qo_heads), Dim("head_dim", self.dim)
        outputs = {"o": TensorSpec((rows, heads, dim), self.query_dtype, "out")}
        if self.return_lse:
            outputs["lse"] = TensorSpec((rows, heads), "f32", "out", "contiguous", alignment=4)
        return outputs


class PagedAttention(Attention[ArgsT]):
    """Attention over a paged cache.

    page_table: "csr" takes kv_indptr, kv_indices, last_page_len; "block" takes block_table, kv_lens.
    max_kv_indices: bound on kv_indptr[-1], the pages of all requests together; None is num_total_pages.
    """

    batch_size: Count
    paged_kv: PagedKvCacheDescriptor
    page_table: PageTable = "csr"
    max_kv_indices: Count | None = None

    @model_validator(mode="after")
    def _paged(self) -> PagedAttention[ArgsT]:
        check_token_bound(self.kv_index_bound, self.paged_kv.page_size)
        return self

    @property
    def kv_heads(self) -> int:
        return self.paged_kv.num_kv_heads

    @property
    def dim(self) -> int:
        return self.paged_kv.head_dim

    @property
    def kv_dtype(self) -> DType:
        return self.paged_kv.dtype

    @property
    def kv_index_bound(self) -> int:
        return self.paged_kv.num_total_pages if self.max_kv_indices is None else self.max_kv_indices

    @property
    def kv_token_bound(self) -> int:
        """No request, and no batch, has more tokens than this."""
        return self.kv_index_bound * self.paged_kv.page_size

    def _cache(self) -> dict[str, TensorSpec]:
        pools = {"k_data": self.paged_kv.pool_spec("in"), "v_data": self.paged_kv.pool_spec("in")}
        return pools | page_table_operands(self.page_table, self.batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPagedPrefillArgs(Args):
    q: Tensor
    q_indptr: Tensor
    k_data: Tensor
    v_data: Tensor
    kv_indptr: Tensor | None = None
    kv_indices: Tensor | None = None
    last_page_len: Tensor | None = None
    block_table: Tensor | None = None
    kv_lens: Tensor | None = None
    o: Tensor
    lse: Tensor | None = None


class BatchPagedPrefillDescriptor(PagedAttention[BatchPagedPrefillArgs]):
    """softmax(scale * q k^T) v for the last q_len rows of each request, over its pages.

    total_num_rows: rows of q over all requests. causal: row i sees keys j <= i + kv_len - q_len.
    """

    op: Literal["paged_prefill"] = "paged_prefill"
    args_type: ClassVar[type[Args]] = BatchPagedPrefillArgs
    total_num_rows: Count
    causal: bool

    def operands(self) -> dict[str, TensorSpec]:
        rows = Dim("total_num_rows", self.total_num_rows)
        indptr = {"q_indptr": index_spec(Dim("batch_size+1", self.batch_size + 1))}
        return {"q": self._query(rows)} | indptr | self._cache() | self._outputs(rows)


class BatchPagedPrefillPlan(Plan[BatchPagedPrefillArgs]): ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPagedDecodeArgs(Args):
    q: Tensor
    k_data: Tensor
    v_data: Tensor
    kv_indptr: Tensor | None = None
    kv_indices: Tensor | None = None
    last_page_len: Tensor | None = None
    block_table: Tensor | None = None
    kv_lens: Tensor | None = None
    o: Tensor
    lse: Tensor | None = None


class BatchPagedDecodeDescriptor(PagedAttention[BatchPagedDecodeArgs]):
    """One query row a request, at the end of its context: softmax(scale * q k^T) v over its pages."""

    op: Literal["paged_decode"] = "paged_decode"
    args_type: ClassVar[type[Args]] = BatchPagedDecodeArgs

    def operands(self) -> dict[str, TensorSpec]:
        rows = Dim("batch_size", self.batch_size)
        return {"q": self._query(rows)} | self._cache() | self._outputs(rows)


class BatchPagedDecodePlan(Plan[BatchPagedDecodeArgs]): ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRaggedPrefillArgs(Args):
    q: Tensor
    q_indptr: Tensor
    k: Tensor
    v: Tensor
    kv_indptr: Tensor
    o: Tensor
    lse: Tensor | None = None


class BatchRaggedPrefillDescriptor(Attention[BatchRaggedPrefillArgs]):
    """softmax(scale * q k^T) v with K and V as plain rows: request b owns rows kv_indptr[b] to kv_indptr[b+1].

    total_num_rows: rows of q; total_kv_rows: rows of k and v. causal as in paged prefill.
    """

    op: Literal["ragged_prefill"] = "ragged_prefill"
    args_type: ClassVar[type[Args]] = BatchRaggedPrefillArgs
    batch_size: Count
    total_num_rows: Count
    total_kv_rows: Count
    num_kv_heads: Size
    head_dim: Size
    causal: bool
    dtype: DType

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads

    @property
    def dim(self) -> int:
        return self.head_dim

    @property
    def kv_dtype(self) -> DType:
        return self.dtype

    @property
    def kv_token_bound(self) -> int:
        return self.total_kv_rows

    def operands(self) -> dict[str, TensorSpec]:
        rows, kv_rows = Dim("total_num_rows", self.total_num_rows), Dim("total_kv_rows", self.total_kv_rows)
        indptr = index_spec(Dim("batch_size+1", self.batch_size + 1))
        kv = TensorSpec((kv_rows, Dim("num_kv_heads", self.num_kv_heads), Dim("head_dim", self.head_dim)), self.dtype)
        return {"q": self._query(rows), "q_indptr": indptr, "k": kv, "v": kv, "kv_indptr": indptr} | self._outputs(rows)


class BatchRaggedPrefillPlan(Plan[BatchRaggedPrefillArgs]): ...


_LLAMA_8B = PagedKvCacheDescriptor(num_total_pages=512, page_size=16, num_kv_heads=8, head_dim=128, dtype="bf16")
_ODD = PagedKvCacheDescriptor(num_total_pages=67, page_size=5, num_kv_heads=1, head_dim=64, dtype="f16", layout="NHD")

EXAMPLES: tuple[Attention[Any], ...] = (
    BatchPagedPrefillDescriptor(batch_size=3, total_num_rows=700, num_qo_heads=32, causal=True, paged_kv=_LLAMA_8B),
    BatchPagedPrefillDescriptor(
        batch_size=5, total_num_rows=63, num_qo_heads=7, causal=False, paged_kv=_ODD, page_table="block", window_left=40
    ),
    BatchPagedDecodeDescriptor(batch_size=16, num_qo_heads=32, paged_kv=_LLAMA_8B),
    BatchPagedDecodeDescriptor(
        batch_size=7, num_qo_heads=7, paged_kv=_ODD, page_table="block", kv_split=100, logits_soft_cap=30.0
    ),
    BatchRaggedPrefillDescriptor(
        batch_size=4,
        total_num_rows=1000,
        total_kv_rows=1000,
        num_qo_heads=8,
        num_kv_heads=2,
        head_dim=128,
        causal=True,
        dtype="bf16",
    ),
    BatchRaggedPrefillDescriptor(
        batch_size=2,
        total_num_rows=63,
        total_kv_rows=131,
        num_qo_heads=5,
        num_kv_heads=1,
        head_dim=64,
        causal=False,
        dtype="f16",
    ),
)
