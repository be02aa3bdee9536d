"""Writing to a paged KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import model_validator

from opfacade.descriptor import Args, Descriptor
from opfacade.model import Count
from opfacade.operands import Dim, TensorSpec, index_spec
from opfacade.paging import PagedKvCacheDescriptor, PageTable, check_token_bound, page_table_operands
from opfacade.plan import Plan

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedKvAppendArgs(Args):
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


class PagedKvAppendDescriptor(Descriptor[PagedKvAppendArgs]):
    """Copy new K and V rows into their pages, bit for bit.

    The page table already counts the new rows, which are each request's last: row i of the n of request b goes to
    position kv_len - n + i. total_num_rows: new rows over all requests.
    """

    op: Literal["paged_kv_append"] = "paged_kv_append"
    category: ClassVar[str] = "kv_cache"
    args_type: ClassVar[type[Args]] = PagedKvAppendArgs
    batch_size: Count
    total_num_rows: Count
    paged_kv: PagedKvCacheDescriptor
    page_table: PageTable = "csr"
    max_kv_indices: Count | None = None

    @model_validator(mode="after")
    def _paged(self) -> PagedKvAppendDescriptor:
        bound = self.paged_kv.num_total_pages if self.max_kv_indices is None else self.max_kv_indices
        check_token_bound(bound, self.paged_kv.page_size)
        return self

    def operands(self) -> dict[str, TensorSpec]:
        heads, dim = Dim("num_kv_heads", self.paged_kv.num_kv_heads), Dim("head_dim", self.paged_kv.head_dim)
        new = TensorSpec((Dim("total_num_rows", self.total_num_rows), heads, dim), self.paged_kv.dtype)
        pool = self.paged_kv.pool_spec("inout")
        indptr = index_spec(Dim("batch_size+1", self.batch_size + 1))
        rows = {"k_new": new, "v_new": new, "append_indptr": indptr, "k_data": pool, "v_data": pool}
        return rows | page_table_operands(self.page_table, self.batch_size)


class PagedKvAppendPlan(Plan[PagedKvAppendArgs]): ...


EXAMPLES = (
    PagedKvAppendDescriptor(
        batch_size=3,
        total_num_rows=100,
        paged_kv=PagedKvCacheDescriptor(num_total_pages=64, page_size=16, num_kv_heads=8, head_dim=128, dtype="bf16"),
    ),
    PagedKvAppendDescriptor(
        batch_size=5,
        total_num_rows=63,
        paged_kv=PagedKvCacheDescriptor(
            num_total_pages=37, page_size=3, num_kv_heads=1, head_dim=65, dtype="f8_e4m3", layout="NHD"
        ),
        page_table="block",
    ),
)
