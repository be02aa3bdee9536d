"""One append to a paged cache as a plan and its args."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from opfacade.compat.attending import Call, Pools, Table, aligned
from opfacade.compat.dtypes import name_of
from opfacade.compat.selecting import plan_for
from opfacade.plans.attention import PagedKvCacheDescriptor
from opfacade.plans.kv_cache import PagedKvAppendArgs, PagedKvAppendDescriptor

_NOTHING: Mapping[str, torch.Tensor] = MappingProxyType({})


class New(NamedTuple):
    """The rows [rows, kv_heads, head_dim] of all requests, one request after the other; `indptr` contains the start of each
    request.

    rope: "none", "half" or "interleaved", with the angles in `operands["cos_sin_cache"]`, whose dtype is rope_dtype.
    """

    k: torch.Tensor
    v: torch.Tensor
    indptr: torch.Tensor
    rope: str = "none"
    operands: Mapping[str, torch.Tensor] = _NOTHING


def appended(op: str, new: New, pools: Pools, table: Table) -> Call:
    """The page table already includes the new rows."""
    angles, factors = new.operands.get("cos_sin_cache"), new.operands.get("k_scale")
    facts = (
        (*pools.facts, name_of(op, "k_cache", pools.k.dtype), pools.layout, pools.page_grows),
        (
            ("batch_size", table.batch),
            ("total_num_rows", new.k.shape[0]),
            ("page_table", table.form),
            ("max_kv_indices", table.max_pages),
            ("new_dtype", name_of(op, "k", new.k.dtype)),
            ("kv_scale", "none" if factors is None else "tensor" if factors.shape[0] == 1 else "head"),
            ("rope", new.rope),
            ("rotary_dim", None if angles is None else angles.shape[1]),
            ("rope_dtype", "f32" if angles is None else name_of(op, "rotary_cos", angles.dtype)),
        ),
    )
    pool = {"k_data": pools.k, "v_data": pools.v}
    rows = {"k_new": aligned(new.k), "v_new": aligned(new.v), "append_indptr": new.indptr}
    return Call(plan_for(_append, facts, pools.k.device), PagedKvAppendArgs(**rows, **pool, **table.operands, **new.operands))


def _append(facts: tuple[Any, ...]) -> PagedKvAppendDescriptor:
    (pages, page_size, kv_heads, dim, dtype, layout, page_grows), fields = facts
    pool = PagedKvCacheDescriptor(
        num_total_pages=pages, page_size=page_size, num_kv_heads=kv_heads, head_dim=dim, dtype=dtype, layout=layout,
        any_page_size=page_grows,
    )  # fmt: skip
    return PagedKvAppendDescriptor(paged_kv=pool, **dict(fields))
