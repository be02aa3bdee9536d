"""Common fields of attention: score computation, visible keys, key splits, outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.dtypes import FloatDType
from opfacade.core.guarantee import Condition
from opfacade.core.model import F32_MAX, INT32_MAX, Count, Integer, Model, Single, Size, SoftCap, as_index, contradiction
from opfacade.core.operands import Dim, TensorSpec
from opfacade.core.request_tables import RequestTables
from opfacade.plans._attention.elsewhere import OFF
from opfacade.plans._attention.packed_mask import refuse_short_mask
from opfacade.plans._attention.paging import (
    FP8,
    SCALES,
    PagePool,
    PageTable,
    check_token_bound,
    index_bound,
    on_pages,
    page_tables,
    scale_spec,
    wrong_scale,
)
from opfacade.plans._attention.variant import Variant, mask_operands

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

LSE_BASE = {"lse_base": "e"}  # a fact of each SKU of attention: lse is a natural logarithm
ArgsT = TypeVar("ArgsT", bound=Args)
KvSplit = Annotated[Literal["auto", "off"] | Annotated[int, Field(ge=1, le=INT32_MAX)], BeforeValidator(as_index)]


class Attention(Descriptor[ArgsT]):
    """Common fields of attention.

    kv_split: with "auto", the bounds determine how contexts are split; the SKU states the result.
    sinks: a learned logit per query head, neither scaled nor capped, is added to the denominator of every row, without a value
    and independently of the window. It is finite, or -inf for no sink. lse includes it, so a row that sees no key has o = 0 and
    lse = sink. If states are merged later, exactly one state must include the sink; the others need -inf.
    """

    category: ClassVar[str] = "attention"
    error_models: ClassVar[tuple[str, ...]] = ("exact", "attention-f64", "attention-f32", "attention-mma16", "attention-mma8")
    later: ClassVar[frozenset[str]] = frozenset({"sinks", "o_dtype", "max_kv_len"})
    sizes: ClassVar[frozenset[str]] = frozenset({"max_kv_len"})
    off: ClassVar[Mapping[str, object]] = OFF
    workspace_hint: ClassVar[str] = 'kv_split="off" needs no workspace.'
    invariance_hint: ClassVar[str] = 'kv_split="off" or a fixed chunk keeps a request\'s bits independent of its batch.'
    tuning_rounds: ClassVar[frozenset[str]] = frozenset({"window_left"})
    tuning_ignores: ClassVar[frozenset[str]] = frozenset({"sm_scale", "allow_unusual_scale"})
    tuning_flags: ClassVar[frozenset[str]] = frozenset({"logits_soft_cap"})
    num_qo_heads: Size = Field(
        description="Number of query heads: a multiple of the number of KV heads; any number in latent attention."
    )
    sm_scale: Single | None = Field(
        default=None, description="Finite factor of q.k; None: 1/sqrt(head_dim), and 1/sqrt(192) in latent attention."
    )
    allow_unusual_scale: bool = Field(default=False, description="Accept an sm_scale that is zero or negative.")
    kv_split: KvSplit = Field(
        default="auto",
        description='"auto": long contexts are split over the device; "off": no split; an int: chunks of this many tokens.',
    )
    window_left: Annotated[Integer, Field(ge=-1, le=INT32_MAX)] = Field(
        default=-1, description="w >= 0 hides keys more than w positions before the row; -1: no window."
    )
    logits_soft_cap: SoftCap = Field(default=0.0, description="c > 0 replaces a score s by c * tanh(s / c); 0: no cap.")
    q_dtype: FloatDType | None = Field(default=None, description="Element type of q; None: as the cache.")
    o_dtype: FloatDType | None = Field(default=None, description="Element type of o; None: as q, or bf16 for an fp8 q.")
    return_lse: bool = Field(default=True, description="Also write lse, the natural logarithm of the sum of exponentials, f32.")
    sinks: bool = Field(default=False, description="Adds a learned logit per query head to the softmax denominator (f32).")
    max_kv_len: Count | None = Field(
        default=None,
        description="Largest number of tokens per request, which affects split and workspace; None: the page table's limit.",
    )

    @model_validator(mode="after")
    def _attention(self) -> Attention[ArgsT]:
        if self.num_qo_heads % self.kv_heads:
            raise contradiction("num_qo_heads", f"a multiple of num_kv_heads={self.kv_heads}", self.num_qo_heads)
        if self.sm_scale is not None and self.sm_scale <= 0 and not self.allow_unusual_scale:
            raise contradiction(
                "sm_scale", "a positive number", self.sm_scale, "If this is intended, set allow_unusual_scale=True."
            )
        if (cap := self.logits_soft_cap) and abs(self.scale) / cap > F32_MAX:  # kernels multiply scores by sm_scale / cap
            raise contradiction("logits_soft_cap", "a cap for which |sm_scale| / cap is finite in f32", cap)
        return self

    def wrong_values(self, name: str, args: Any) -> tuple[Tensor, str] | None:
        if name in SCALES:
            return wrong_scale(getattr(args, name))
        found = super().wrong_values(name, args)
        if found is not None and name == "sinks":  # -inf means no sink
            return found[0] & (args.sinks != -math.inf), found[1]
        return found

    def refuse_requests(self, args: Args, requests: Sequence[tuple[int, int]]) -> None:
        """Checks that a packed mask has a bit for each row and key of a request."""
        refuse_short_mask(self.op, args, requests)

    @property
    def kv_heads(self) -> int:
        raise NotImplementedError

    @property
    def dim(self) -> int:
        """Elements of a head of q and k; for latent attention, elements of the latent."""
        raise NotImplementedError

    @property
    def dim_vo(self) -> int:
        """Elements of a head of v and o."""
        return self.dim

    @property
    def kv_dtype(self) -> FloatDType:
        raise NotImplementedError

    @property
    def kv_token_bound(self) -> int:
        """Tokens of all requests for which grids and workspaces are sized."""
        raise NotImplementedError

    @property
    def request_token_bound(self) -> int:
        """Bound on the tokens of one request."""
        raise NotImplementedError

    @property
    def query_dtype(self) -> FloatDType:
        return self.q_dtype or self.kv_dtype

    @property
    def output_dtype(self) -> FloatDType:
        return self.o_dtype or ("bf16" if self.query_dtype in FP8 else self.query_dtype)

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_qo_heads // self.kv_heads

    @property
    def kv_elements(self) -> int:
        """Elements of one token in the cache."""
        return self.kv_heads * (self.dim + self.dim_vo)

    @property
    def pair_elements(self) -> int:
        """Elements of a key and a value for one query head, which is the number of products."""
        return self.dim + self.dim_vo

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.dim) if self.sm_scale is None else self.sm_scale

    @property
    def _heads(self) -> Dim:
        return Dim("num_qo_heads", self.num_qo_heads)

    @property
    def _value_dim(self) -> Dim:
        return Dim("head_dim" if self.dim_vo == self.dim else "head_dim_vo", self.dim_vo)

    def _query(self, rows: Dim) -> TensorSpec:
        return TensorSpec((rows, self._heads, Dim("head_dim", self.dim)), self.query_dtype)

    def _sinks(self) -> dict[str, TensorSpec]:
        return {"sinks": TensorSpec((self._heads,), "f32", "in", "contiguous", alignment=4)} if self.sinks else {}

    def _outputs(self, rows: Dim) -> dict[str, TensorSpec]:
        heads = self._heads
        outputs = {"o": TensorSpec((rows, heads, self._value_dim), self.output_dtype, "out")}
        if self.return_lse:
            outputs["lse"] = TensorSpec((rows, heads), "f32", "out", "contiguous", alignment=4)
        return outputs


class ScaledQuery(Model):
    """A prefill whose q may be fp8."""

    q_scale: Literal["none", "tensor", "head"] = Field(
        default="none",
        description='fp8 q contains Q / q_scale: "tensor" has one positive scale, "head" one per KV head, "none" the scale 1.',
    )

    @model_validator(mode="after")
    def _scaled_query(self) -> ScaledQuery:
        dtype = getattr(self, "query_dtype", None)
        if self.q_scale != "none" and dtype not in FP8:
            hint = f"A q of {' or '.join(FP8)} may have one."
            raise contradiction("q_scale", f"'none' for a q of {dtype}", self.q_scale, hint)
        return self

    def _query_scale(self) -> dict[str, TensorSpec]:
        size = Dim("num_kv_heads", getattr(self, "kv_heads", 1)) if self.q_scale == "head" else Dim("1", 1)
        return {} if self.q_scale == "none" else {"q_scale": scale_spec(size)}


class Varied(Model):
    """Optional fields of a prefill: a variant, and a mask of the call. Both can only hide more keys than causal and window do.

    custom_mask: `packed_mask [n]` uint8 and `mask_indptr [batch_size + 1]` int32 state for each row and key of a request
    whether the row sees the key. The bits of request b are row-major [q_len, kv_len] and begin with byte mask_indptr[b]: pair
    (i, j) is bit (i * kv_len + j) % 8 (bit 0 is the least significant) of byte mask_indptr[b] + (i * kv_len + j) // 8. Bits
    that belong to no pair are ignored. mask_indptr starts at 0, and a request has at least ceil(q_len * kv_len / 8) bytes.
    Kernels treat bits past the end of packed_mask as hidden."""

    variant: Variant | None = Field(
        default=None, description="Expressions for scores, mask or query, whose parameters are operands. None: plain attention."
    )
    custom_mask: bool = Field(
        default=False, description="Adds the operands packed_mask and mask_indptr, with one bit per row and key."
    )

    @model_validator(mode="after")
    def _varied(self) -> Varied:
        if self.variant is not None and self.variant.logits is not None and getattr(self, "logits_soft_cap", 0.0) > 0:
            cap = getattr(self, "logits_soft_cap", 0.0)
            hint = "Both replace the score: write the cap in the expression."
            raise contradiction("logits_soft_cap", "0.0 beside variant.logits", cap, hint)
        return self

    @property
    def masks(self) -> bool:
        """True if keys are hidden by anything other than causal and window."""
        return self.custom_mask or (self.variant is not None and self.variant.mask is not None)

    def _more(self, heads: Dim, rows: Dim, keys: tuple[Dim, ...], batch_size: int) -> dict[str, TensorSpec]:
        mask = mask_operands(Dim("batch_size", batch_size)) if self.custom_mask else {}
        return (self.variant.operands(heads, rows, keys) if self.variant is not None else {}) | mask


FINITE_LOGITS = Condition(id="finite_logits", text="where a step of variant.logits is beyond f32, no bound holds")


def transforms_scores(descriptor: object) -> bool:
    """True if a logits expression is applied between q.k and the softmax; it is then part of the error bound."""
    return isinstance(descriptor, Varied) and descriptor.variant is not None and descriptor.variant.logits is not None


def varied_facts(descriptor: object) -> dict[str, bool | str]:
    """SKU facts of a variant and a mask; empty without them."""
    if not isinstance(descriptor, Varied):
        return {}
    facts: dict[str, bool | str] = {"custom_mask": True} if descriptor.custom_mask else {}
    return facts if descriptor.variant is None else facts | {"variant": descriptor.variant.key}


class PagedAttention(Attention[ArgsT]):
    """Attention over a pool of pages. Without max_kv_indices, requests may share pages, so their total may exceed the number of
    pages of the pool."""

    sizes: ClassVar[frozenset[str]] = Attention.sizes | {"batch_size", "max_kv_indices"}
    batch_size: Count = Field(description="Number of requests, 0 or more.")
    paged_kv: PagePool = Field(description="The pool of pages.")
    page_table: PageTable = Field(
        default="csr", description='"csr": kv_indptr, kv_indices, last_page_len; "block": block_table and kv_lens.'
    )
    max_kv_indices: Count | None = Field(
        default=None,
        description="Largest number of pages of all requests, with shared pages counted each time; None: num_total_pages.",
    )

    @model_validator(mode="after")
    def _paged(self) -> PagedAttention[ArgsT]:
        check_token_bound(self.paged_kv, self.max_kv_indices)
        return self

    @property
    def kv_dtype(self) -> FloatDType:
        return self.paged_kv.dtype

    @property
    def kv_index_bound(self) -> int:
        return index_bound(self.paged_kv, self.max_kv_indices)

    @property
    def kv_token_bound(self) -> int:
        tokens = self.kv_index_bound * self.paged_kv.page_size
        return tokens if self.max_kv_len is None else min(tokens, self.batch_size * self.max_kv_len)

    @property
    def request_token_bound(self) -> int:
        pool, pages = self.paged_kv, self.max_kv_indices
        tokens = (pool.num_total_pages if pages is None else pages) * pool.page_size
        return tokens if self.max_kv_len is None else min(tokens, self.max_kv_len)

    def request_tables(self) -> RequestTables:
        return page_tables(self, self.window_left)

    def on_pages(self, pages: int) -> Self:
        return on_pages(self, pages)
