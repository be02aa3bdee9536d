"""The paged KV cache, shared by all families that use it: its descriptor and its page-table operands."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from opfacade.core.dtypes import ITEMSIZE, FloatDType
from opfacade.core.model import INT32_MAX, INT64_MAX, Count, Model, Size, Written, contradiction
from opfacade.core.operands import Dim, TensorSpec, index_spec, is_finite
from opfacade.core.request_tables import RequestTables
from opfacade.plans._attention.elsewhere import LATENT_FIELDS

if TYPE_CHECKING:
    from torch import Tensor

Layout = Literal["HND", "NHD"]
PageTable = Literal["csr", "block"]
KvScale = Literal["none", "tensor", "head"]
ModelT = TypeVar("ModelT", bound=Model)
FP8: tuple[FloatDType, ...] = ("f8_e4m3", "f8_e5m2")
_LAYOUTS = (
    'Write layout="NHD" for pools [page, token, head, dim], which vLLM, SGLang, FlashInfer (its default) and flash-attn store, '
    'or layout="HND" for pools [page, head, token, dim], which TensorRT-LLM stores, and FlashInfer and vLLM if set to HND.'
)


class PagePool(Written):
    """Properties of a pool on which page tables depend."""

    sizes: ClassVar[frozenset[str]] = frozenset({"num_total_pages"})
    num_total_pages: Count = Field(description="Number of pages of the pool, 0 or more.")
    page_size: Size = Field(description="Number of tokens per page, 1 or more.")
    dtype: FloatDType = Field(description="Element type of the pool.")

    @property
    def power_of_two(self) -> bool:
        """Whether a kernel may assume that page_size is a power of two; this is compiled into the kernel."""
        return self.page_size & (self.page_size - 1) == 0


class PagedKvCacheDescriptor(PagePool):
    """A pool of pages, with separate tensors for K and V.

    HND: `[num_total_pages, num_kv_heads, page_size, head_dim]`; NHD: `[num_total_pages, page_size, num_kv_heads, head_dim]`.
    Pages, tokens and heads may have any strides; head_dim is contiguous."""

    hints: ClassVar[Mapping[str, str]] = MappingProxyType({"layout": _LAYOUTS})
    num_kv_heads: Size = Field(description="Number of KV heads.")
    head_dim: Size = Field(description="Elements of one head.")
    layout: Layout = Field(  # no default: if page_size equals num_kv_heads, a wrong layout would pass every check
        description='Axes of a pool: "HND": pages, heads, tokens, elements; "NHD": pages, tokens, heads, elements.',
    )
    any_page_size: bool = Field(
        default=False,
        description="Use a kernel for any page_size, for caches whose page_size changes between calls.",
    )

    @model_serializer(mode="wrap")
    def _as_before(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omits a later field at its default, so that older texts and digests stay valid."""
        return {name: value for name, value in fields(self).items() if value or name != "any_page_size"}

    @property
    def power_of_two(self) -> bool:
        return super().power_of_two and not self.any_page_size

    def without_sizes(self) -> tuple[object, ...]:
        """A varying page_size is also a size, except for its remainder modulo 8, because fp8 products need groups of 8 tokens
        within a page."""
        if not self.any_page_size:
            return super().without_sizes()
        kept = [getattr(self, name) for name in type(self).model_fields if name not in self.sizes | {"page_size"}]
        return (*kept, self.page_size % 8 == 0)

    @model_validator(mode="after")
    def _addressable(self) -> PagedKvCacheDescriptor:
        size = self.num_total_pages * self.page_size * self.num_kv_heads * self.head_dim * ITEMSIZE[self.dtype]
        if size > INT64_MAX:
            raise contradiction("num_total_pages", f"a pool of at most 2^63 - 1 bytes, not {size}", self.num_total_pages)
        return self

    @property
    def token_axis(self) -> int:
        return 2 if self.layout == "HND" else 1

    @property
    def token_dims(self) -> tuple[Dim, Dim]:
        """Shape of a tensor with one number per token, in the order of the pool."""
        return Dim("num_total_pages", self.num_total_pages), Dim("page_size", self.page_size)

    def pool_spec(self, role: Literal["in", "inout"]) -> TensorSpec:
        """One of the two pools."""
        pages, tokens = self.token_dims
        heads, dim = Dim("num_kv_heads", self.num_kv_heads), Dim("head_dim", self.head_dim)
        shape = (pages, heads, tokens, dim) if self.layout == "HND" else (pages, tokens, heads, dim)
        other = "NHD" if self.layout == "HND" else "HND"
        return TensorSpec(shape, self.dtype, role, paged=(0, self.token_axis), exchanged=f'It fits layout="{other}".')


class PagedLatentCacheDescriptor(PagePool):
    """A pool of pages of latent rows: `ckv [num_total_pages, page_size, latent_dim]`, which is both key and value, and `kpe
    [num_total_pages, page_size, rope_dim]`, the rotated part of the key.

    Pages and tokens may have any strides, so ckv and kpe may be two tensors, or columns of one tensor of width latent_dim +
    rope_dim."""

    elsewhere: ClassVar[Mapping[str, str]] = LATENT_FIELDS
    latent_dim: Size = Field(default=512, description="Elements of ckv, which is both key and value.")
    rope_dim: Size = Field(default=64, description="Elements of kpe, the rotated part of the key.")

    @property
    def token_axis(self) -> int:
        return 1

    @property
    def widths(self) -> tuple[Dim, Dim]:
        return Dim("latent_dim", self.latent_dim), Dim("rope_dim", self.rope_dim)

    def pool_specs(self) -> dict[str, TensorSpec]:
        rows = (Dim("num_total_pages", self.num_total_pages), Dim("page_size", self.page_size))
        widths = zip(("ckv", "kpe"), self.widths, strict=True)
        return {name: TensorSpec((*rows, width), self.dtype, paged=(0, self.token_axis)) for name, width in widths}


def page_table_operands(form: PageTable, batch_size: int) -> dict[str, TensorSpec]:
    """The index tensors of a page table: csr (indptr, indices, last_page_len) or block (table, lengths).

    Rows of a block table may have any stride, so it may be a slice of a wider table."""
    batch, batch_plus_1 = Dim("batch_size", batch_size), Dim("batch_size+1", batch_size + 1)
    if form == "block":
        rows = TensorSpec((batch, Dim("max_pages")), "i32", "index", alignment=4)
        return {"block_table": rows, "kv_lens": index_spec(batch)}
    return {"kv_indptr": index_spec(batch_plus_1), "kv_indices": index_spec(Dim("n")), "last_page_len": index_spec(batch)}


class Pageable(Protocol):
    """The fields of an op on a pool of pages that decide its page table."""

    @property
    def op(self) -> str: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def paged_kv(self) -> PagePool: ...
    @property
    def page_table(self) -> str: ...
    @property
    def max_kv_indices(self) -> int | None: ...
    @property
    def request_token_bound(self) -> int: ...


def page_tables(descriptor: Pageable, window: int = -1) -> RequestTables:
    """The page table of a descriptor with a pool. Without max_kv_indices, the bound on pages is the largest one for which the
    sum of tokens and requests fits in an int32, because kernels add them."""
    pool, bound, requests = descriptor.paged_kv, descriptor.max_kv_indices, descriptor.batch_size
    block = descriptor.page_table == "block"
    return RequestTables(
        op=descriptor.op,
        requests=requests,
        starts="" if block else "kv_indptr",
        lens="kv_lens" if block else "last_page_len",
        pages="block_table" if block else "kv_indices",
        page_tokens=pool.page_size,
        num_pages=pool.num_total_pages,
        limit=(INT32_MAX - requests) // pool.page_size if bound is None else bound,
        max_len=descriptor.request_token_bound,
        window=window,
        block=block,
        bounded=bound is not None,
    )


def on_pages(descriptor: ModelT, pages: int) -> ModelT:
    """The same problem on a pool with the given number of pages and the same bound on all pages."""
    given: Any = descriptor
    pool = given.paged_kv.model_dump() | {"num_total_pages": pages}
    bound = index_bound(given.paged_kv, given.max_kv_indices)
    return type(descriptor).model_validate(given.model_dump() | {"paged_kv": pool, "max_kv_indices": bound})


def scale_operands(kv_scale: KvScale, num_kv_heads: int) -> dict[str, TensorSpec]:
    """The scales of an fp8 cache: K = k_scale * k_data, V = v_scale * v_data."""
    if kv_scale == "none":
        return {}
    spec = scale_spec(Dim("1", 1) if kv_scale == "tensor" else Dim("num_kv_heads", num_kv_heads))
    return {"k_scale": spec, "v_scale": spec}


def scale_spec(size: Dim) -> TensorSpec:
    return TensorSpec((size,), "f32", "in", "contiguous", alignment=4)


SCALES = ("k_scale", "v_scale", "q_scale")


def wrong_scale(scale: Tensor) -> tuple[Tensor, str]:
    """`Descriptor.wrong_values` of a scale: values that are not positive and finite."""
    return ~is_finite(scale) | (scale <= 0), "positive finite values"


def check_scale(kv_scale: KvScale, dtype: FloatDType) -> None:
    if kv_scale != "none" and dtype not in FP8:
        hint = f"A cache of {' or '.join(FP8)} may have one."
        raise contradiction("kv_scale", f"'none' for a cache of {dtype}", kv_scale, hint)


def index_bound(pool: PagePool, max_kv_indices: int | None) -> int:
    """The bound on the pages of all requests, for which grids and workspaces are sized."""
    return pool.num_total_pages if max_kv_indices is None else max_kv_indices


def check_token_bound(pool: PagePool, max_kv_indices: int | None) -> None:
    """The largest length of a request: the device stores it as int32."""
    named, bound = max_kv_indices is not None, index_bound(pool, max_kv_indices)
    if bound * pool.page_size > INT32_MAX:
        field = "max_kv_indices" if named else "paged_kv.num_total_pages"
        expected = f"at most 2^31 - 1 tokens in pages of {pool.page_size}, for lengths are int32, not {bound * pool.page_size}"
        raise contradiction(field, expected, bound)
