"""Continuous batching of transformers 5.17 and 5.18: attention reads the pages of its cache in place.

New rows are appended to their pages, then prefill or decode reads them. Layers with a sliding window have a ring buffer of
slots instead of a page table: the cache gathers their keys, and ragged prefill computes attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from opfacade.integrations.pass_memo import PassMemo
from opfacade.integrations.refusal import refuse
from opfacade.integrations.tensors import dtype_of
from opfacade.integrations.transformers.arguments import refuse_unknown
from opfacade.integrations.transformers.cache_pages import LayerPages, layer_pages, slides
from opfacade.integrations.transformers.packed_rows import Rows, attend_rows, new_output
from opfacade.integrations.transformers.problem import Scores, check_tensors, scores
from opfacade.integrations.transformers.releases import WAY
from opfacade.plans._attention import growth
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

if TYPE_CHECKING:
    from opfacade.integrations.transformers.parts import WithLayer


@torch.compiler.disable  # type: ignore[untyped-decorator]
def paged_attention(
    module: WithLayer, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, sliding_window: int | None = None, softcap: float | None = None,
    s_aux: Tensor | None = None, is_causal: bool | None = None, cache: Any = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """query [1, heads, rows, dim], key and value [1, kv_heads, rows, dim]: the new rows of all requests, one after the other.
    Returns o [1, rows, heads, dim]. Padding rows of a CUDA graph are 0.

    Raises ArgumentError without a cache, UnsupportedError for an unsupported argument.
    """
    step = _taken(cache, kwargs, attention_mask)
    refuse_unknown(kwargs, dropout)
    found = scores(scaling, softcap, s_aux, sliding_window)
    check_tensors(query, key, value)
    rows = Rows(query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1))
    if value.shape[3] != key.shape[3]:
        refuse(WAY, "OPF-I001", "value", expected=f"head_dim {key.shape[3]}, that of key: a page has one", got=value.shape[3])
    if slides(cache, module.layer_idx):
        return _ring(module, key, value, (rows.q, found, step, cache)), None
    pages = layer_pages(cache, module.layer_idx)
    table = _tables.get(module, step.sources(pages), (pages.group, pages.slots_a_page), lambda: _table(step, pages))
    problem = _Paged(rows, pages, table, step)
    problem.append()
    return problem.attend(found)[None], None


class Step(NamedTuple):
    """The requests of a step. Lists have an entry per group of layers, dicts per kind of layer."""

    cu_q: Tensor
    cu_k: Any
    max_q: int
    max_k: Any
    read: list[Tensor]
    write: list[Tensor]

    def of(self, kind: str) -> tuple[Tensor, int]:
        """cu_seq_lens_k and max_seqlen_k for a kind of layer."""
        return (self.cu_k[kind], self.max_k[kind]) if isinstance(self.cu_k, dict) else (self.cu_k, self.max_k)

    def sources(self, pages: LayerPages) -> tuple[Tensor, ...]:
        return self.read[pages.group], self.write[pages.group], self.of("full_attention")[0]


_tables: PassMemo[tuple[Tensor, Tensor]] = PassMemo()
_NEEDED = ("cu_seq_lens_q", "cu_seq_lens_k", "max_seqlen_q", "max_seqlen_k", "read_index", "write_index")


def _taken(cache: object, kwargs: dict[str, Any], mask: Tensor | None) -> Step:
    """Removes the arguments of a step from kwargs and returns them."""
    for name, value in (("cache", cache), *((name, kwargs.get(name)) for name in _NEEDED)):
        if value is None:
            hint = "This name is for continuous batching; attn_implementation='opfacade' serves every other call."
            refuse(WAY, "OPF-I004", name, expected="what continuous batching passes", got=None, hint=hint)
    if mask is not None:
        refuse(WAY, "OPF-I001", "attention_mask", expected="None", got=type(mask).__name__, hint="Lengths hold the whole mask.")
    return Step(*(kwargs.pop(name) for name in _NEEDED))


def _table(step: Step, pages: LayerPages) -> tuple[Tensor, Tensor]:
    """Block table and lengths, computed on the device from the token slots: the first slot of a page determines the page id."""
    cu_k, longest = step.of("full_attention")
    read, write = step.read[pages.group], step.write[pages.group]
    slots = read if read.numel() else write  # no request has cached tokens: the new rows are all keys
    first = torch.arange(0, max(longest, 1), pages.page_size, device=cu_k.device)
    token = cu_k[:-1, None] + first
    named = slots[token.clamp(max=slots.numel() - 1)] // pages.slots_a_page
    return torch.where(token < cu_k[1:, None], named, -1).to(torch.int32), cu_k.diff().to(torch.int32)


def _ring(module: torch.nn.Module, key: Tensor, value: Tensor, call: tuple[Tensor, Scores, Step, Any]) -> Tensor:
    q, found, step, cache = call
    index = {"read_index": step.read, "write_index": step.write}
    k, v = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, **index)
    cu_k, longest = step.of("sliding_attention")
    return attend_rows(Rows(q, k, v), (step.cu_q, cu_k), found, (step.max_q, longest))[None]


@dataclass(frozen=True, slots=True)
class _Paged:
    rows: Rows
    pages: LayerPages
    table: tuple[Tensor, Tensor]
    step: Step

    @property
    def _common(self) -> dict[str, Any]:
        batch, width = self.table[0].shape
        _, size, heads, dim = self.pages.k.shape
        pool = PagedKvCacheDescriptor(
            num_total_pages=self.pages.k.shape[0], page_size=size, num_kv_heads=heads, head_dim=dim,
            dtype=dtype_of(WAY, "cache", self.pages.k), layout="NHD",
        )  # fmt: skip
        # Requests may share pages of a prefix, so the table may have more entries than the pool has pages.
        most = growth.bounds_of(batch, width * size, size)["max_kv_indices"]
        return {"batch_size": batch, "paged_kv": pool, "page_table": "block", "max_kv_indices": most}

    @property
    def _operands(self) -> dict[str, Any]:
        return {"k_data": self.pages.k, "v_data": self.pages.v, "block_table": self.table[0], "kv_lens": self.table[1]}

    def append(self) -> None:
        descriptor = PagedKvAppendDescriptor(total_num_rows=self.rows.k.shape[0], **self._common)
        new = {"k_new": self.rows.k, "v_new": self.rows.v, "append_indptr": self.step.cu_q}
        PagedKvAppendPlan.select(descriptor).run(PagedKvAppendArgs(**new, **self._operands))

    def attend(self, found: Scores) -> Tensor:
        q, batch = self.rows.q, self.table[0].shape[0]
        o = new_output(q, q.shape[2], self.step.max_q)
        common = self._common | found.fields | {"num_qo_heads": q.shape[1]}
        operands = {"q": q, "sinks": found.sinks, "o": o} | self._operands
        common |= {
            "window_left": found.window_left,
            "max_kv_len": growth.longest(self.table[0].shape[1] * self.pages.page_size),
        }
        if self.step.max_q == 1 and q.shape[0] == batch:
            BatchPagedDecodePlan.select(BatchPagedDecodeDescriptor(**common)).run(BatchPagedDecodeArgs(**operands))
        else:
            descriptor = BatchPagedPrefillDescriptor(total_num_rows=q.shape[0], causal=True, **common)
            BatchPagedPrefillPlan.select(descriptor).run(BatchPagedPrefillArgs(q_indptr=self.step.cu_q, **operands))
        return o
