"""Writing to a paged KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Descriptor
from opfacade.core.dtypes import FloatDType
from opfacade.core.model import Count, Size, contradiction
from opfacade.core.operands import Contents, Dim, TensorSpec, index_spec
from opfacade.core.request_tables import NOWHERE, RequestTables
from opfacade.plan import Plan
from opfacade.plans._attention.number_scales import ScaledArgs
from opfacade.plans._attention.page_tables import block_of_csr, even_indptr, even_page_table, indptr, page_table
from opfacade.plans._attention.paging import (
    FP8,
    SCALES,
    KvScale,
    PagedKvCacheDescriptor,
    PageTable,
    check_token_bound,
    index_bound,
    on_pages,
    page_table_operands,
    page_tables,
    scale_operands,
    wrong_scale,
)
from opfacade.validation.ownership import PageUse, judged_by, shared_page
from opfacade.validation.rules import index_error

__all__ = [
    "NOWHERE",
    "PageUse",
    "PagedKvAppendArgs",
    "PagedKvAppendDescriptor",
    "PagedKvAppendPlan",
    "PagedKvCacheDescriptor",
    "block_of_csr",
    "even_indptr",
    "even_page_table",
    "indptr",
    "judged_by",
    "page_table",
    "shared_page",
]

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

    from opfacade.core.descriptor import Args

Rope = Literal["none", "interleaved", "half"]
RopeDType = Literal["f32", "bf16", "f16"]
_WIDER = ": set new_dtype, such as new_dtype='bf16'."


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedKvAppendArgs(ScaledArgs):
    beside: ClassVar[str] = "k_data"
    k_new: Tensor
    v_new: Tensor
    append_indptr: Tensor
    k_data: Tensor
    v_data: Tensor
    kv_indptr: Tensor | None = None
    kv_indices: Tensor | None = None
    last_page_len: Tensor | None = None
    block_table: Tensor | None = None
    kv_lens: Tensor | None = None
    k_scale: Tensor | float | None = None
    v_scale: Tensor | float | None = None
    cos_sin_cache: Tensor | None = None


class PagedKvAppendDescriptor(Descriptor[PagedKvAppendArgs]):
    """Copy new K and V rows to their pages, without change unless K is rotated or rows are quantised.

    The lengths in the page table include the new rows, which are the last rows of each request: row i of the n new rows of
    request b has the position kv_len - n + i. total_num_rows: new rows of all requests.
    new_dtype: dtype of k_new and v_new; None: as the cache. For an fp8 cache, f16, bf16 or f32 rows are divided by k_scale and
    v_scale if kv_scale is set (attention multiplies by them), and rounded to the nearest value; too large values become the
    largest finite value, and NaN stays NaN.
    rope: K is rotated by the angle of its position, in pairs (2i, 2i + 1) for "interleaved" or (i, i + rotary_dim/2) for
    "half", in its first rotary_dim elements (None: head_dim). cos_sin_cache [max_positions, rotary_dim] has rotary_dim/2
    cosines and then as many sines per position, in rope_dtype; it must have a row for every position that is written.
    All arithmetic is f32, and rows are rounded once.
    """

    op: Literal["paged_kv_append"] = Field(default="paged_kv_append", description="The operator.")
    category: ClassVar[str] = "kv_cache"
    error_models: ClassVar[tuple[str, ...]] = ("exact", "append-f32")
    later: ClassVar[frozenset[str]] = frozenset({"new_dtype", "kv_scale", "rope", "rotary_dim", "rope_dtype"})
    owners: ClassVar[Mapping[str, str]] = MappingProxyType({"k_new": "append_indptr", "v_new": "append_indptr"})
    sizes: ClassVar[frozenset[str]] = frozenset({"batch_size", "total_num_rows", "max_kv_indices"})
    batch_size: Count = Field(description="Number of requests, 0 or more.")
    total_num_rows: Count = Field(description="New rows over all requests.")
    paged_kv: PagedKvCacheDescriptor = Field(description="The pools of K and V.")
    page_table: PageTable = Field(
        default="csr",
        description='"csr": kv_indptr, kv_indices, last_page_len; "block": block_table, kv_lens. Lengths include the new rows.',
    )
    max_kv_indices: Count | None = Field(
        default=None, description="Largest number of pages of all requests; None: num_total_pages."
    )
    new_dtype: FloatDType | None = Field(
        default=None, description="Element type of k_new and v_new; None: as the cache. An fp8 cache also accepts wider rows."
    )
    kv_scale: KvScale = Field(
        default="none",
        description='"tensor" or "head": new rows are divided by k_scale and v_scale before they are quantised; "none": by 1.',
    )
    rope: Rope = Field(
        default="none",
        description="K is rotated by the angle of its position, in pairs (2i, 2i + 1) or (i, i + rotary_dim / 2).",
    )
    rotary_dim: Size | None = Field(
        default=None, description="Even number of elements of a row of K that are rotated; None: head_dim."
    )
    rope_dtype: RopeDType = Field(default="f32", description="Element type of cos_sin_cache.")

    @model_validator(mode="after")
    def _paged(self) -> PagedKvAppendDescriptor:
        check_token_bound(self.paged_kv, self.max_kv_indices)
        return self

    @model_validator(mode="after")
    def _computed(self) -> PagedKvAppendDescriptor:
        cache, new = self.paged_kv.dtype, self.row_dtype
        if new != cache and (cache not in FP8 or new in FP8):
            hint = f"Wider rows are quantised into a cache of {' or '.join(FP8)}."
            raise contradiction("new_dtype", f"the dtype of the cache, {cache}", new, hint)
        if self.kv_scale != "none" and not self.quantises:
            hint = f"It is for wider rows that are quantised into an fp8 cache{_WIDER if cache in FP8 else '.'}"
            raise contradiction("kv_scale", f"'none' for {new} rows in a {cache} cache", self.kv_scale, hint)
        if self.rope == "none" and self.rotary_dim is not None:
            raise contradiction("rotary_dim", "None without a rope", self.rotary_dim)
        if self.rope == "none" and self.rope_dtype != "f32":
            raise contradiction("rope_dtype", "'f32' without a rope", self.rope_dtype)
        if self.rope != "none" and (self.rotated % 2 or self.rotated > self.paged_kv.head_dim):
            raise contradiction("rotary_dim", f"an even number, at most head_dim={self.paged_kv.head_dim}", self.rotated)
        if self.rope != "none" and new in FP8:
            hint = f"Rows of f16, bf16 or f32 can be rotated{_WIDER}"
            raise contradiction("rope", f"'none' for new rows of {new}", self.rope, hint)
        return self

    def wrong_values(self, name: str, args: Args) -> tuple[Tensor, str] | None:
        return wrong_scale(getattr(args, name)) if name in SCALES else super().wrong_values(name, args)

    def request_tables(self) -> RequestTables:
        return replace(page_tables(self), rows="append_indptr", total_rows=self.total_num_rows, appends=True)

    def refuse_requests(self, args: Any, requests: Sequence[tuple[int, int]]) -> None:
        """Checks that the table has a row for the position of each rotated row."""
        if args.cos_sin_cache is None:
            return
        known, lens = args.cos_sin_cache.shape[0], self.request_tables().lens
        for request, (rows, length) in enumerate(requests):
            if rows and length > known:
                allowed = f"a length in the {known} positions of cos_sin_cache"
                raise index_error(self.op, lens, request, length, allowed, request)

    def on_pages(self, pages: int) -> Self:
        return on_pages(self, pages)

    @property
    def request_token_bound(self) -> int:
        """The largest number of tokens of a request."""
        return index_bound(self.paged_kv, self.max_kv_indices) * self.paged_kv.page_size

    @property
    def row_dtype(self) -> FloatDType:
        """Dtype of the new rows."""
        return self.new_dtype or self.paged_kv.dtype

    @property
    def quantises(self) -> bool:
        return self.row_dtype != self.paged_kv.dtype

    @property
    def copies(self) -> bool:
        """Whether new rows are stored bit for bit."""
        return self.rope == "none" and not self.quantises

    @property
    def rotated(self) -> int:
        """Elements of a row of K that are rotated."""
        if self.rope == "none":
            return 0
        return self.paged_kv.head_dim if self.rotary_dim is None else self.rotary_dim

    def operands(self) -> dict[str, TensorSpec]:
        heads, dim = Dim("num_kv_heads", self.paged_kv.num_kv_heads), Dim("head_dim", self.paged_kv.head_dim)
        new = TensorSpec((Dim("total_num_rows", self.total_num_rows), heads, dim), self.row_dtype)
        pool = self.paged_kv.pool_spec("inout")
        indptr = index_spec(Dim("batch_size+1", self.batch_size + 1))
        rows = {"k_new": new, "v_new": new, "append_indptr": indptr, "k_data": pool, "v_data": pool}
        table = page_table_operands(self.page_table, self.batch_size)
        return rows | table | scale_operands(self.kv_scale, self.paged_kv.num_kv_heads) | self._angles()

    def _angles(self) -> dict[str, TensorSpec]:
        shape = (Dim("max_positions"), Dim("rotary_dim", self.rotated))
        # Accepts any angle at positions without a new row.
        return {"cos_sin_cache": TensorSpec(shape, self.rope_dtype, contents=Contents(finite=False))} if self.rotated else {}


class PagedKvAppendPlan(Plan[PagedKvAppendArgs]):
    """Writing new K and V rows into their pages, also with RoPE and quantisation."""


EXAMPLES = (
    PagedKvAppendDescriptor(
        batch_size=3,
        total_num_rows=100,
        paged_kv=PagedKvCacheDescriptor(
            num_total_pages=64, page_size=16, num_kv_heads=8, head_dim=128, dtype="bf16", layout="HND"
        ),
    ),
    PagedKvAppendDescriptor(
        batch_size=5,
        total_num_rows=63,
        paged_kv=PagedKvCacheDescriptor(
            num_total_pages=37, page_size=3, num_kv_heads=1, head_dim=65, dtype="f8_e4m3", layout="NHD"
        ),
        page_table="block",
    ),
    PagedKvAppendDescriptor(
        batch_size=7,
        total_num_rows=40,
        paged_kv=PagedKvCacheDescriptor(
            num_total_pages=64, page_size=16, num_kv_heads=2, head_dim=128, dtype="f8_e4m3", layout="HND"
        ),
        new_dtype="bf16",
        kv_scale="head",
        rope="half",
    ),
    PagedKvAppendDescriptor(
        batch_size=5,
        total_num_rows=63,
        paged_kv=PagedKvCacheDescriptor(
            num_total_pages=37, page_size=5, num_kv_heads=3, head_dim=96, dtype="f16", layout="NHD"
        ),
        page_table="block",
        rope="interleaved",
        rotary_dim=32,
    ),
)
