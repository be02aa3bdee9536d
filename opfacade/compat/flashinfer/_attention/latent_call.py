"""One call of latent attention, shared by FlashInfer's MLA wrappers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from opfacade.compat.attending import Call, Table
from opfacade.compat.dtypes import name_of
from opfacade.compat.flashinfer._attention.results import LseForm
from opfacade.compat.refusals import require_dense, require_tensor, unmapped, wrong_shape
from opfacade.compat.selecting import plan_for, preferred
from opfacade.plans.mla import BatchMlaDecodeArgs, BatchMlaDecodeDescriptor, PagedLatentCacheDescriptor


class Latent(NamedTuple):
    """q_nope `[rows, heads, latent]`, q_pe `[rows, heads, rope]`, ckv `[pages, page_size, latent]`, kpe likewise."""

    q_nope: torch.Tensor
    q_pe: torch.Tensor
    ckv: torch.Tensor
    kpe: torch.Tensor


class Told(NamedTuple):
    """Sizes from the arguments of plan(); rope is None if plan() has none."""

    page_size: int
    latent: int
    rope: int | None


class LatentScores(NamedTuple):
    """q_len: rows per request; causal: they are the last tokens of the request, and each sees the keys up to its own
    position."""

    sm_scale: float
    window_left: int = -1
    soft_cap: float = 0.0
    q_len: int = 1
    causal: bool = True


def latent_call(
    op: str,
    tensors: Latent,
    table: Table,
    scores: LatentScores,
    form: LseForm,
    more: dict[str, torch.Tensor | None],
    told: Told,
) -> Call:
    """more: out and sinks. q has scores.q_len rows of each request, one request after the other."""
    rows, heads, latent = require_tensor(op, "q_nope", tensors.q_nope, "rows, num_heads, head_dim_ckv")
    pages, page_size, width = require_tensor(op, "ckv_cache", tensors.ckv, "pages, page_size, head_dim_ckv")
    _, rotated_page, rope = require_tensor(op, "kpe_cache", tensors.kpe, "pages, page_size, head_dim_kpe")
    require_tensor(op, "q_pe", tensors.q_pe, "rows, num_heads, head_dim_kpe")
    _require_rotated(op, "kpe_cache", rope)
    if latent != told.latent:
        expected = f"[rows, num_heads, head_dim_ckv={told.latent}], as passed to plan()"
        raise wrong_shape(op, "q_nope", expected, list(tensors.q_nope.shape))
    if (page_size, width) != (told.page_size, latent):
        expected = f"[pages, page_size={told.page_size}, head_dim_ckv={latent}], as passed to plan()"
        raise wrong_shape(op, "ckv_cache", expected, list(tensors.ckv.shape))
    if (rotated_page, rope) != (told.page_size, rope if told.rope is None else told.rope):
        width_told = "" if told.rope is None else f"={told.rope}"
        expected = f"[pages, page_size={told.page_size}, head_dim_kpe{width_told}], as passed to plan()"
        raise wrong_shape(op, "kpe_cache", expected, list(tensors.kpe.shape))
    sinks = more.get("sinks")
    if sinks is not None:
        require_tensor(op, "sinks", sinks, "num_heads")
    cache = (pages, page_size, latent, rope, name_of(op, "ckv_cache", tensors.ckv.dtype))
    queries = _Queries(heads, name_of(op, "q_nope", tensors.q_nope.dtype), form.wanted, sinks is not None)
    facts = (cache, _fields(table, page_size, scores, queries))
    o = more.get("out")
    if o is not None and not isinstance(o, torch.Tensor):
        require_dense(op, "out", o, "rows, num_heads, head_dim_ckv")
    lse = form.operand
    if o is None:
        o = torch.empty_like(tensors.q_nope, memory_format=torch.contiguous_format)
    if lse is None and form.wanted:
        lse = torch.empty(rows, heads, dtype=torch.float32, device=o.device)
    own = {"q_nope": tensors.q_nope, "q_pe": tensors.q_pe, "ckv": tensors.ckv, "kpe": tensors.kpe}
    args: dict[str, Any] = {**own, **table.operands, "o": o, "lse": lse, "sinks": None if sinks is None else sinks.float()}
    return Call(plan_for(_descriptor, facts, o.device), BatchMlaDecodeArgs(**args))


def _require_rotated(op: str, argument: str, width: int) -> None:
    if width == 0:
        raise unmapped(op, argument, "a rotated part with at least one element", "none")


class LatentPlan(NamedTuple):
    """The properties that tensors of later calls must have, from plan()."""

    heads: int
    page_size: int
    latent: int
    rope: int
    q_dtype: str
    kv_dtype: str


def require_plan(op: str, table: Table, scores: LatentScores, told: LatentPlan) -> None:
    """Raises the errors that `Plan.select` would raise for calls with this table and the current preference. It
    checks nothing without a preference, because the reference supports every problem."""
    _require_rotated(op, "head_dim_kpe", told.rope)
    if preferred() is None:
        return
    cache = (max(1, table.max_pages), told.page_size, told.latent, told.rope, told.kv_dtype)
    queries = _Queries(told.heads, told.q_dtype, return_lse=False, sinks=False)
    plan_for(_descriptor, (cache, _fields(table, told.page_size, scores, queries)), next(iter(table.operands.values())).device)


class _Queries(NamedTuple):
    heads: int
    dtype: str
    return_lse: bool
    sinks: bool


def _fields(table: Table, page_size: int, scores: LatentScores, queries: _Queries) -> tuple[tuple[str, Any], ...]:
    return (
        ("batch_size", table.batch),
        ("num_qo_heads", queries.heads),
        ("page_table", table.form),
        *table.bounds(page_size, "auto"),
        ("sm_scale", scores.sm_scale),
        ("allow_unusual_scale", scores.sm_scale <= 0),
        ("window_left", scores.window_left),
        ("logits_soft_cap", scores.soft_cap),
        ("q_dtype", queries.dtype),
        ("return_lse", queries.return_lse),
        ("q_len", scores.q_len),
        ("causal", scores.causal or scores.q_len == 1),
        ("sinks", queries.sinks),
    )


def _descriptor(facts: tuple[Any, ...]) -> BatchMlaDecodeDescriptor:
    (pages, page_size, latent, rope, dtype), fields = facts
    pool = PagedLatentCacheDescriptor(num_total_pages=pages, page_size=page_size, latent_dim=latent, rope_dim=rope, dtype=dtype)
    return BatchMlaDecodeDescriptor(paged_kv=pool, **dict(fields))
