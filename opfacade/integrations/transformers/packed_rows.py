"""Causal attention of packed requests whose keys and values are rows, one request after the other."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from opfacade.integrations.tensors import dtype_of
from opfacade.integrations.transformers.problem import Scores
from opfacade.integrations.transformers.releases import WAY
from opfacade.plans._attention import growth
from opfacade.plans.attention import BatchRaggedPrefillArgs, BatchRaggedPrefillDescriptor, BatchRaggedPrefillPlan


class Rows(NamedTuple):
    """Rows of all requests, one request after the other: q [rows, heads, dim], k and v [kv_rows, kv_heads, dim]."""

    q: Tensor
    k: Tensor
    v: Tensor


def attend_rows(rows: Rows, indptr: tuple[Tensor, Tensor], found: Scores, longest: tuple[int, int]) -> Tensor:
    """o [rows, heads, dim of v]. rows: q, k and v; indptr: of q, and of k and v; longest: the largest number of rows per
    request, of q, and of k and v."""
    q, k, v = rows
    batch = indptr[0].shape[0] - 1
    split = growth.ragged_split(batch * k.shape[1], q.shape[0], longest[1]) if longest[0] < max(longest[1], 2) else "auto"
    o = new_output(q, v.shape[2], longest[0])
    descriptor = BatchRaggedPrefillDescriptor(
        batch_size=batch, total_num_rows=q.shape[0], total_kv_rows=k.shape[0], num_qo_heads=q.shape[1],
        num_kv_heads=k.shape[1], head_dim=k.shape[2], head_dim_vo=None if v.shape[2] == k.shape[2] else v.shape[2],
        causal=True, dtype=dtype_of(WAY, "key", k), window_left=found.window_left, kv_split=split,
        **found.fields,
    )  # fmt: skip
    args = BatchRaggedPrefillArgs(q=q, q_indptr=indptr[0], k=k, v=v, kv_indptr=indptr[1], sinks=found.sinks, o=o)
    BatchRaggedPrefillPlan.select(descriptor).run(args)
    return o


def new_output(q: Tensor, dim: int, longest: int) -> Tensor:
    """The output [rows, heads, dim]. Rows that belong to no request (padding) are not written; they are zeroed, so that later
    layers read no NaN."""
    shape = (q.shape[0], q.shape[1], dim)
    return q.new_zeros(shape) if longest >= q.shape[0] > 1 else q.new_empty(shape)
