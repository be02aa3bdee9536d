"""Multi-head latent attention with absorbed projections: all query heads attend to one latent row per token, which is both key
and value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.model import INT32_MAX, Size, contradiction
from opfacade.core.operands import Dim, TensorSpec
from opfacade.core.request_tables import RequestTables
from opfacade.plan import Plan
from opfacade.plans._attention.elsewhere import LATENT_ATTENTION
from opfacade.plans._attention.kv_shard import KvShard as KvShard
from opfacade.plans._attention.kv_shard import Sharded
from opfacade.plans._attention.operand_docs import AttentionArgs
from opfacade.plans._attention.paging import PagedLatentCacheDescriptor as PagedLatentCacheDescriptor
from opfacade.plans._attention.paging import page_table_operands, page_tables
from opfacade.plans._attention.scoring import PagedAttention

__all__ = [
    "BatchMlaDecodeArgs",
    "BatchMlaDecodeDescriptor",
    "BatchMlaDecodePlan",
    "KvShard",
    "PagedLatentCacheDescriptor",
]

if TYPE_CHECKING:
    from torch import Tensor

# The widths of DeepSeek's models, and the width of a head before absorption, which operands do not show.
_LATENT, _ROPE, _UNABSORBED = 512, 64, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMlaDecodeArgs(AttentionArgs):
    q_nope: Tensor
    q_pe: Tensor
    ckv: Tensor
    kpe: Tensor
    kv_indptr: Tensor | None = None
    kv_indices: Tensor | None = None
    last_page_len: Tensor | None = None
    block_table: Tensor | None = None
    kv_lens: Tensor | None = None
    sinks: Tensor | None = None
    o: Tensor
    lse: Tensor | None = None


class BatchMlaDecodeDescriptor(PagedAttention[BatchMlaDecodeArgs], Sharded):
    """softmax(scale * (q_nope ckv^T + q_pe kpe^T)) ckv over pages, for q_len query rows per request.

    Row i of request b is row b * q_len + i of q_nope, q_pe, o and lse, and has the position kv_len - q_len + i in the request.
    With causal, it sees the keys up to this position. The pages already contain the keys of these rows.
    q_nope is the query multiplied by the up-projection of keys; the caller applies the up-projection of values to o.
    sm_scale: for latents of 512 + 64, None is 1/sqrt(128 + 64), from the width of a head before absorption. Set it for other
    widths and for models that scale their attention differently (YaRN); usually it is
    1/sqrt(qk_nope_head_dim + qk_rope_head_dim). If a pool contains X / f, pass sm_scale * f and multiply o by f.
    """

    op: Literal["mla_decode"] = Field(default="mla_decode", description="The operator.")
    elsewhere: ClassVar[Mapping[str, str]] = LATENT_ATTENTION
    later: ClassVar[frozenset[str]] = PagedAttention.later | {"q_len", "causal", "shard"}
    paged_kv: PagedLatentCacheDescriptor = Field(description="The pool of latent rows.")
    q_len: Size = Field(
        default=1, description="Query rows per request, which are its last tokens; a kernel is compiled for each value."
    )
    causal: bool = Field(
        default=True, description="Row i of q_len rows sees kv_len - (q_len - 1 - i) keys; False: each row sees all kv_len."
    )

    @model_validator(mode="after")
    def _known_scale(self) -> BatchMlaDecodeDescriptor:
        widths = (self.paged_kv.latent_dim, self.paged_kv.rope_dim)
        if self.sm_scale is None and widths != (_LATENT, _ROPE):
            expected = f"a number, for its default is that of latents of {_LATENT} + {_ROPE}, not {widths}"
            hint = "Usually it is 1/sqrt(qk_nope_head_dim + qk_rope_head_dim)."
            raise contradiction("sm_scale", expected, None, hint)
        return self

    @model_validator(mode="after")
    def _countable_rows(self) -> BatchMlaDecodeDescriptor:
        if self.num_rows > INT32_MAX:
            raise contradiction("q_len", f"at most 2^31 - 1 rows in {self.batch_size} requests", self.q_len)
        return self

    @property
    def num_rows(self) -> int:
        """Rows of q_nope, q_pe, o and lse."""
        return self.batch_size * self.q_len

    @property
    def kv_heads(self) -> int:
        return 1

    @property
    def dim(self) -> int:
        return self.paged_kv.latent_dim

    @property
    def kv_elements(self) -> int:
        return self.paged_kv.latent_dim + self.paged_kv.rope_dim

    @property
    def pair_elements(self) -> int:
        return self.kv_elements + self.paged_kv.latent_dim

    @property
    def _value_dim(self) -> Dim:
        return self.paged_kv.widths[0]

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(_UNABSORBED + _ROPE) if self.sm_scale is None else self.sm_scale

    def operands(self) -> dict[str, TensorSpec]:
        rows = Dim("batch_size" if self.q_len == 1 else "batch_size*q_len", self.num_rows)
        heads = self._heads
        latent, rope = self.paged_kv.widths
        queries = {
            "q_nope": TensorSpec((rows, heads, latent), self.query_dtype),
            "q_pe": TensorSpec((rows, heads, rope), self.query_dtype),
        }
        table = page_table_operands(self.page_table, self.batch_size)
        return queries | self.paged_kv.pool_specs() | table | self._sinks() | self._outputs(rows)

    def request_tables(self) -> RequestTables:
        """The window begins at that of the first row; earlier pages may have any id."""
        return page_tables(self, min(self.window_left + self.q_len - 1, INT32_MAX) if self.window_left >= 0 else -1)


class BatchMlaDecodePlan(Plan[BatchMlaDecodeArgs]):
    """Latent attention decode (MLA, absorbed): one row or q_len rows for each request."""


_DEEPSEEK = PagedLatentCacheDescriptor(num_total_pages=16, page_size=64, dtype="bf16")
_SMALL_PAGES = PagedLatentCacheDescriptor(num_total_pages=48, page_size=16, dtype="f16")
_ODD = PagedLatentCacheDescriptor(num_total_pages=63, page_size=5, latent_dim=96, rope_dim=24, dtype="f16")

EXAMPLES = (
    BatchMlaDecodeDescriptor(batch_size=5, num_qo_heads=16, paged_kv=_DEEPSEEK),
    BatchMlaDecodeDescriptor(
        batch_size=7, num_qo_heads=11, paged_kv=_ODD, page_table="block", kv_split=100, sm_scale=0.1, sinks=True
    ),
    BatchMlaDecodeDescriptor(batch_size=3, num_qo_heads=128, paged_kv=_SMALL_PAGES, page_table="block", kv_split=128),
    BatchMlaDecodeDescriptor(batch_size=4, num_qo_heads=16, q_len=3, paged_kv=_DEEPSEEK, window_left=150, sinks=True),
)
