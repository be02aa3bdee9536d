"""The fp64 oracle: computes the expected outputs from the stored inputs, row by row."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import ROUNDOFF, UNDERFLOW
from opfacade.plans._attention.variant_eval import Place
from opfacade.plans._attention.work import rows_each
from opfacade.testing.bounds import IndexOf
from opfacade.testing.families.attention import variation
from opfacade.testing.families.attention.bound import ErrorRow, attention_bounds
from opfacade.testing.families.attention.call import is_paged
from opfacade.testing.numerics import Bounded

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args
    from opfacade.plans.cascade import MergeStatesDescriptor
    from opfacade.testing.families.attention.call import AttentionCall, Pooled, Problem

_HEADS = 32
_Piece = tuple[list[Bounded], "dict[str, Tensor]", str, IndexOf]


def attention(
    descriptor: Problem, args: AttentionCall, c: dict[str, float], rows: int | None, rng: random.Random
) -> Iterator[_Piece]:
    """Yields the expected results of sampled query rows of each request with their bounds, and the outputs of the kernel.

    rows: the number of sampled rows, or None for all. With more than _HEADS heads, fewer rows are sampled, because the bound
    treats each head as a separate row.
    """
    if rows is not None:
        rows = max(1, rows * _HEADS // max(_HEADS, descriptor.num_qo_heads))
    if not isinstance(descriptor.kv_split, str):
        c = c | {"part": float(descriptor.kv_split)}
    if any(getattr(descriptor, name, "none") != "none" for name in ("kv_scale", "q_scale")):
        c = c | {"scaled": 1.0}
    q_indptr = row_starts(descriptor, args)
    sampled = sorted(rng.sample(range(q_indptr[-1]), min(rows, q_indptr[-1])) if rows is not None else range(q_indptr[-1]))
    for request in range(descriptor.batch_size):
        first, stop = q_indptr[request], q_indptr[request + 1]
        mine = [r for r in sampled if first <= r < stop]
        if mine:
            yield _request(descriptor, args, c, request, mine, first, stop - first)


def row_starts(descriptor: Problem, args: AttentionCall) -> list[int]:
    """The first row of each request in q, and the number of rows. In a decode, each request has the same number of rows."""
    if hasattr(args, "q_indptr"):
        return list(args.q_indptr.tolist())
    each = rows_each(descriptor)
    return list(range(0, each * descriptor.batch_size + 1, each))


def _request(
    descriptor: Problem, args: AttentionCall, c: dict[str, float], request: int, mine: list[int], first: int, q_len: int
) -> _Piece:
    import torch

    k, v = scaled_kv(descriptor, args, request)
    at = torch.tensor(mine, device=args.o.device)
    group, kv_heads = descriptor.group_size, k.shape[1]
    place = Place(at - first, q_len, k.shape[0], descriptor.num_qo_heads, kv_heads)
    known = variation.values(descriptor, args, request, place, first, key_places(descriptor, args, request))
    row = ErrorRow(
        q=variation.query(descriptor, _grouped(query(args)[at], kv_heads), known).double() * query_factor(descriptor, args),
        k=k.transpose(0, 1),
        v=v.transpose(0, 1),
        seen=variation.shown(
            descriptor, args, request, place, known, seen(descriptor, at - first + k.shape[0] - q_len, k.shape[0])
        ),
        scale=descriptor.scale,
        soft_cap=descriptor.logits_soft_cap,
        sink=None if args.sinks is None else args.sinks.double().reshape(kv_heads, group).repeat(1, len(mine)),
        logits=variation.logits(descriptor, known),
    )
    got = {"o": _grouped(args.o[at], kv_heads)}
    bounded = attention_bounds(row, c, descriptor.output_dtype) if k.shape[0] or descriptor.sinks else _nothing(row)
    if args.lse is not None:
        got["lse"] = _grouped(args.lse[at][..., None], kv_heads).squeeze(-1)
    else:
        bounded = bounded[:1]
    return bounded, got, f"request {request} (q_len {q_len}, kv_len {k.shape[0]})", partial(_in_operand, mine, group)


def _in_operand(rows: list[int], group: int, index: list[int]) -> list[int]:
    """Converts an index into a result of `_grouped` to the index [row, head, ...] in the operand."""
    kv_head, at, *rest = index
    return [rows[at // group], kv_head * group + at % group, *rest]


def _grouped(x: Tensor, kv_heads: int) -> Tensor:
    """Converts [rows, heads, d] to [kv_heads, rows * group, d], the order of ErrorRow.q."""
    rows, heads, d = x.shape
    return x.reshape(rows, kv_heads, heads // kv_heads, d).permute(1, 0, 2, 3).reshape(kv_heads, -1, d)


def shown(descriptor: Problem, args: AttentionCall, request: int, first: int, q_len: int, kv_len: int) -> Tensor:
    """The visible keys [q_len, kv_len] of each row of a request; the keys of the first head if the heads differ."""
    import torch

    rows = torch.arange(q_len, device=args.o.device)
    place = Place(rows, q_len, kv_len, descriptor.num_qo_heads, descriptor.kv_heads)
    known = variation.values(descriptor, args, request, place, first, key_places(descriptor, args, request))
    visible = seen(descriptor, rows + kv_len - q_len, kv_len)
    return variation.shown(descriptor, args, request, place, known, visible)[0, :: descriptor.group_size]


def seen(descriptor: Problem, position: Tensor, kv_len: int) -> Tensor:
    """A mask [rows, kv_len] of the keys that the causal mask and the window leave visible."""
    import torch

    key = torch.arange(kv_len, device=position.device)[None]
    shown = torch.ones(position.shape[0], kv_len, dtype=torch.bool, device=position.device)
    if getattr(descriptor, "causal", False):
        shown &= key <= position[:, None]
    if descriptor.window_left >= 0:
        shown &= key >= position[:, None] - descriptor.window_left
    return shown


def _nothing(row: ErrorRow) -> list[Bounded]:
    """The expected results of rows without visible keys: o is exactly 0, and lse is -inf."""
    import torch

    zero = torch.zeros((*row.q.shape[:2], row.v.shape[-1]), dtype=torch.float64, device=row.q.device)
    lse = torch.full(row.q.shape[:2], -math.inf, dtype=torch.float64, device=row.q.device)
    return [Bounded("o", zero, zero, zero), Bounded("lse", lse, torch.zeros_like(lse), torch.zeros_like(lse))]


def queries(args: AttentionCall) -> tuple[Tensor, ...]:
    """The parts of the query rows, in the order in which they are concatenated to match a key."""
    return (args.q_nope, args.q_pe) if hasattr(args, "q_nope") else (args.q,)


def query(args: AttentionCall) -> Tensor:
    import torch

    return torch.cat(queries(args), -1)


def query_factor(descriptor: Problem, args: AttentionCall) -> Tensor | float:
    """The scale of the stored q per KV head, [1 or kv_heads, 1, 1]."""
    return 1.0 if getattr(descriptor, "q_scale", "none") == "none" else args.q_scale.double()[:, None, None]


def pools(args: AttentionCall) -> dict[str, Tensor]:
    """The paged tensors of a call by name."""
    names = ("ckv", "kpe") if hasattr(args, "ckv") else ("k_data", "v_data")
    return {name: getattr(args, name) for name in names}


def request_kv(descriptor: Problem, args: AttentionCall, request: int) -> tuple[Tensor, Tensor]:
    """The K and V rows of one request, [kv_len, kv_heads, head_dim], for any storage."""
    import torch

    at = key_places(descriptor, args, request)
    if not is_paged(descriptor):
        return args.k[at], args.v[at]
    first, second = (by_token(pool, descriptor)[at] for pool in pools(args).values())
    if hasattr(args, "ckv"):  # the latent row is both value and key
        return torch.cat([first, second], -1)[:, None], first[:, None]
    return first, second


def scaled_kv(descriptor: Problem, args: AttentionCall, request: int) -> tuple[Tensor, Tensor]:
    """K and V of a request in fp64, multiplied by their scales."""
    k, v = (x.double() for x in request_kv(descriptor, args, request))
    if getattr(descriptor, "kv_scale", "none") == "none":
        return k, v
    return k * args.k_scale.double()[:, None], v * args.v_scale.double()[:, None]


def key_places(descriptor: Problem, args: AttentionCall, request: int) -> tuple[Any, ...]:
    """The index of a request's keys in an operand with the layout of K."""
    if is_paged(descriptor):
        return token_places(descriptor, args, request)
    first, stop = args.kv_indptr[request : request + 2].tolist()
    return (slice(first, stop),)


def by_token(pool: Tensor, descriptor: Pooled) -> Tensor:
    """The pool as [pages, page_size, ...], for any layout."""
    return pool.movedim(descriptor.paged_kv.token_axis, 1)


def token_places(descriptor: Pooled, args: Any, request: int) -> tuple[Tensor, Tensor]:
    """(page, slot) of every token of a request, in order. A page id outside the pool is replaced by page 0, because no row
    attends to it."""
    import torch

    size, count = descriptor.paged_kv.page_size, descriptor.paged_kv.num_total_pages
    if args.block_table is not None:
        length, pages = int(args.kv_lens[request]), args.block_table[request]
    else:
        first, stop = args.kv_indptr[request : request + 2].tolist()
        pages = args.kv_indices[first:stop]
        length = (stop - first - 1) * size + int(args.last_page_len[request]) if stop > first else 0
    token = torch.arange(length, device=pages.device)
    page = pages[token // size].long()
    return page.where((page >= 0) & (page < count), 0), token % size


def merge(descriptor: MergeStatesDescriptor, args: Args) -> list[Bounded]:
    """The merged state and its bound: weights with an error of a few ulp, one sum over the states, one rounding."""
    import torch

    given, lse = (torch.stack(tuple(states)).double() for states in descriptor.states_of(args))
    top = lse.amax(0)
    m = torch.where(top == -math.inf, torch.zeros_like(top), top)
    w = (lse - m).exp()
    total = w.sum(0)
    w = w / torch.where(total == 0, torch.ones_like(total), total)
    states = torch.where((lse == -math.inf)[..., None], torch.zeros_like(given), given)
    o, size = (w[..., None] * states).sum(0), (w[..., None] * states.abs()).sum(0)
    count, magnitude = lse.shape[0], lse.masked_fill(lse == -math.inf, 0.0).abs().amax(0)
    relative = (2.0**-20 + (count + 8) * 2.0**-23 + 8 * 2.0**-24 * magnitude)[..., None]
    u, eta = ROUNDOFF[descriptor.dtype], UNDERFLOW[descriptor.dtype]
    hard = 1.02 * ((1 + 2 * u) * relative * size + u * o.abs() + eta)
    merged = m + total.log()
    spread = 1.02 * (2.0**-20 + (count + 8) * 2.0**-23 + 8 * 2.0**-24 * magnitude)
    return [Bounded("o", o, hard, hard), Bounded("lse", merged, spread, spread)]
