"""One attention call on dense batches: its plan and operands.

Keys and values of a cache, [batch, heads, length, dim], are used in place as a pool of pages: page b contains all of request b.
This copies nothing, for any strides. If values are narrower than keys, they are passed to ragged prefill as rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from opfacade.integrations.tensors import EvenBatch, dtype_of, even_batch, rows_of
from opfacade.integrations.transformers.problem import Scores, check_batch, packed_mask, scores
from opfacade.integrations.transformers.releases import WAY
from opfacade.plans._attention import growth
from opfacade.plans.attention import (
    BatchPagedDecodeArgs,
    BatchPagedDecodeDescriptor,
    BatchPagedDecodePlan,
    BatchPagedPrefillArgs,
    BatchPagedPrefillDescriptor,
    BatchPagedPrefillPlan,
    BatchRaggedPrefillArgs,
    BatchRaggedPrefillDescriptor,
    BatchRaggedPrefillPlan,
    PagedKvCacheDescriptor,
)

if TYPE_CHECKING:
    from types import SimpleNamespace

    from opfacade.integrations.transformers.parts import WithLayer

Tensors = tuple[Tensor, Tensor, Tensor, Tensor | None]  # query, key, value, mask
How = tuple[float | None, float | None, Tensor | None, int | None]  # scaling, softcap, s_aux, sliding_window


def attend(module: WithLayer | SimpleNamespace, tensors: Tensors, how: How, causal: bool) -> Tensor:
    """o [batch, q_len, heads, dim of value]."""
    query, key, value, attention_mask = tensors
    check_batch(query, key, value)
    call = _Call(query, key, value, _seen(query, key, attention_mask, causal), causal and attention_mask is None)
    mask = {} if attention_mask is None else call.masked(module, attention_mask)
    found = scores(*how)
    run = _ragged if value.shape[3] != key.shape[3] else _decode if call.decodes and not mask else _prefill
    return run(call, found, mask).view(query.shape[0], query.shape[2], query.shape[1], value.shape[3])


def _seen(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> int:
    """The number of keys of a request. A causal prefill without a mask fills an empty cache, which may be longer than the
    prompt; then transformers aligns rows and keys at their beginning."""
    fills = mask is None and causal and query.shape[2] > 1
    return min(query.shape[2], key.shape[2]) if fills else key.shape[2]


@dataclass(frozen=True, slots=True)
class _Call:
    query: Tensor
    key: Tensor
    value: Tensor
    kv_len: int
    causal: bool

    @property
    def decodes(self) -> bool:
        return self.query.shape[2] == 1

    @property
    def grows(self) -> bool:
        """Whether later calls have the same number of rows but more keys. False for a prompt, whose numbers of rows and keys
        are equal."""
        return self.decodes or self.query.shape[2] < self.kv_len

    @property
    def bounds(self) -> dict[str, int]:
        return growth.bounds_of(self.query.shape[0], self.key.shape[2], self.key.shape[2]) if self.grows else {}

    @property
    def index(self) -> EvenBatch:
        return even_batch(self.query, self.query.shape[0], self.query.shape[2], self.kv_len)

    @property
    def out(self) -> Tensor:
        batch, heads, q_len, _ = self.query.shape
        return self.query.new_empty(batch * q_len, heads, self.value.shape[3])

    @property
    def pool(self) -> PagedKvCacheDescriptor:
        pages, heads, length, dim = self.key.shape
        dtype = dtype_of(WAY, "key", self.key)
        return PagedKvCacheDescriptor(
            num_total_pages=pages, page_size=length, num_kv_heads=heads, head_dim=dim, dtype=dtype, layout="HND",
            any_page_size=True,
        )  # fmt: skip

    def masked(self, module: object, mask: Tensor) -> dict[str, Tensor]:
        batch, _, q_len, _ = self.query.shape
        return packed_mask(module, mask, q_len, self.kv_len, batch)


def _common(call: _Call, found: Scores) -> dict[str, Any]:
    window = found.window_left
    return {"batch_size": call.query.shape[0], "num_qo_heads": call.query.shape[1], "window_left": window} | found.fields


def _pages(call: _Call, found: Scores, o: Tensor) -> dict[str, Any]:
    index = call.index
    table = {"block_table": index.block_table, "kv_lens": index.kv_lens}
    return {"q": rows_of(call.query), "k_data": call.key, "v_data": call.value, "sinks": found.sinks, "o": o} | table


def _decode(call: _Call, found: Scores, mask: dict[str, Tensor]) -> Tensor:
    descriptor = BatchPagedDecodeDescriptor(paged_kv=call.pool, page_table="block", **call.bounds, **_common(call, found))
    o = call.out
    BatchPagedDecodePlan.select(descriptor).run(BatchPagedDecodeArgs(**_pages(call, found, o)))
    return o


def _prefill(call: _Call, found: Scores, mask: dict[str, Tensor]) -> Tensor:
    o = call.out
    descriptor = BatchPagedPrefillDescriptor(
        paged_kv=call.pool, page_table="block", total_num_rows=o.shape[0], causal=call.causal, custom_mask=bool(mask),
        **call.bounds, **_common(call, found),
    )  # fmt: skip
    operands = _pages(call, found, o) | mask
    BatchPagedPrefillPlan.select(descriptor).run(BatchPagedPrefillArgs(q_indptr=call.index.q_indptr, **operands))
    return o


def _ragged(call: _Call, found: Scores, mask: dict[str, Tensor]) -> Tensor:
    o, index = call.out, call.index
    k, v = (rows_of(x[:, :, : call.kv_len]) for x in (call.key, call.value))
    units = call.query.shape[0] * k.shape[1]
    split = growth.ragged_split(units, o.shape[0], call.kv_len) if call.grows else "auto"
    descriptor = BatchRaggedPrefillDescriptor(
        total_num_rows=o.shape[0], total_kv_rows=k.shape[0], num_kv_heads=k.shape[1], head_dim=k.shape[2],
        head_dim_vo=v.shape[2], causal=call.causal and not call.decodes, dtype=dtype_of(WAY, "key", k), custom_mask=bool(mask),
        kv_split=split, **_common(call, found),
    )  # fmt: skip
    rows = {"q": rows_of(call.query), "q_indptr": index.q_indptr, "kv_indptr": index.kv_indptr}
    BatchRaggedPrefillPlan.select(descriptor).run(BatchRaggedPrefillArgs(k=k, v=v, sinks=found.sinks, o=o, **rows, **mask))
    return o
