"""softmax(scale * q k^T) v for one request, in blocks of rows, upcast, written like the formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from opfacade.backends.reference.attention.variation import PLAIN, Variation
from opfacade.plans._attention.variant_eval import Place, Values

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Elements of one block of scores; about four such blocks are alive at once.
_SCORE_BUDGET = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Scoring:
    """The computation of a score from q.k, and the keys that a row sees.

    k_scale, v_scale, q_scale: scales of K, V and Q, [1] or [kv_heads]. sinks: [heads], logits without a value. varied: the
    variant or mask of the request.
    """

    scale: float
    soft_cap: float
    causal: bool
    window_left: int
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    q_scale: Tensor | None = None
    sinks: Tensor | None = None
    varied: Variation = PLAIN


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the arithmetic, whose roundoff is far below that of the inputs."""
    import torch

    return torch.float64 if dtype in (torch.float32, torch.float64) else torch.float32


def attend(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, o: Tensor, lse: Tensor | None) -> None:
    """q [q_len, heads, dim]; k [kv_len, kv_heads, dim]; v like k, o like q, both of any other width. Writes o and lse."""
    import torch

    math_dtype = compute_dtype(q.dtype)
    (_, heads, dim), (kv_len, kv_heads, _) = q.shape, k.shape
    group = heads // kv_heads
    keys = k.to(math_dtype).permute(1, 2, 0)  # [kv_heads, dim, kv_len]
    values = v.to(math_dtype).permute(1, 0, 2)  # [kv_heads, kv_len, dim]
    offset = kv_len - q.shape[0]
    block = max(1, _SCORE_BUDGET // max(1, heads * kv_len))
    for start in range(0, q.shape[0], block):
        stop = min(start + block, q.shape[0])
        row = torch.arange(start, stop, device=q.device)
        place = Place(row, q.shape[0], kv_len, heads, kv_heads)
        known = scoring.varied.values(place)
        seen = _visible(row[:, None] + offset, torch.arange(kv_len, device=q.device), scoring).repeat_interleave(group, dim=0)
        seen = scoring.varied.seen(seen[None], place, known)
        grouped = q[start:stop].reshape(stop - start, kv_heads, group, dim)
        rows = scoring.varied.query(grouped.transpose(0, 1).reshape(kv_heads, -1, dim), known).to(math_dtype)
        out, log_sum = _softmax_product(rows, keys, values, seen, scoring, known)
        o[start:stop] = out.reshape(kv_heads, stop - start, group, -1).transpose(0, 1).reshape(stop - start, heads, -1)
        if lse is not None:
            lse[start:stop] = log_sum.reshape(kv_heads, -1, group).transpose(0, 1).reshape(-1, heads).to(torch.float32)


def _visible(row: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
    """A mask [rows, keys]: whether a row, given by its position among the keys, sees a key."""
    import torch

    seen = torch.ones(row.shape[0], key.shape[0], dtype=torch.bool, device=key.device)
    if scoring.causal:
        seen &= key <= row
    if scoring.window_left >= 0:
        seen &= key >= row - scoring.window_left
    return seen


def _softmax_product(
    q: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scoring: Scoring, known: Values
) -> tuple[Tensor, Tensor]:
    """o [kv_heads, rows, dim] and lse [kv_heads, rows]; a row without visible keys gets 0 and its sink, -inf without one."""
    import torch

    scores = _product(q, keys) * _factor(scoring.k_scale, scoring.scale, q) * _factor(scoring.q_scale, 1.0, q)
    if scoring.soft_cap > 0:
        scores = scoring.soft_cap * torch.tanh(scores / scoring.soft_cap)
    scores = scoring.varied.scores(scores, known).masked_fill_(~seen, -math.inf)
    sink = _sink_of_rows(scoring, q)
    if scores.shape[-1] == 0:
        return torch.zeros(*q.shape[:2], values.shape[-1], dtype=q.dtype, device=q.device), sink.squeeze(-1)
    top = torch.maximum(scores.amax(dim=-1, keepdim=True), sink)
    top = torch.where(top == -math.inf, torch.zeros_like(top), top)
    p = scores.sub_(top).exp_()
    total = p.sum(dim=-1, keepdim=True) + (sink - top).exp()
    o = _weighted(p, values, seen) / torch.where(total == 0, torch.ones_like(total), total)
    return o * _factor(scoring.v_scale, 1.0, q), (top + total.log()).squeeze(-1)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in their type, or in f64 where the process permits torch to round factors of f32 to fewer bits (TF32)."""
    import torch

    backend: ModuleType = torch.backends.mkldnn if a.device.type == "cpu" else torch.backends.cuda
    if a.dtype != torch.float32 or backend.matmul.fp32_precision in ("none", "ieee"):
        return torch.matmul(a, b)
    return torch.matmul(a.double(), b.double()).to(a.dtype)


def _sink_of_rows(scoring: Scoring, rows: Tensor) -> Tensor:
    """The sink of each row, [kv_heads, rows, 1]; the query heads of a row are adjacent."""
    if scoring.sinks is None:
        return rows.new_full((*rows.shape[:2], 1), -math.inf)
    by_head = scoring.sinks.to(rows.dtype).reshape(rows.shape[0], -1)
    return by_head.repeat(1, rows.shape[1] // by_head.shape[1])[..., None]


def _factor(scales: Tensor | None, factor: float, like: Tensor) -> Tensor | float:
    """A number times the scale, which may be per KV head."""
    return factor if scales is None else scales.to(like.dtype)[:, None, None] * factor


def _weighted(p: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """p @ values, where a key that is not finite reaches only the rows that see it: 0 * NaN is NaN."""
    import torch

    finite = torch.isfinite(values)
    if bool(finite.all()):
        return _product(p, values)
    out = _product(p, torch.where(finite, values, torch.zeros_like(values)))
    for key in (~finite).any(dim=-1).any(dim=0).nonzero().flatten().tolist():
        wild = torch.where(finite[:, key], torch.zeros_like(values[:, key]), values[:, key])
        term = torch.where((~finite[:, key])[:, None, :], p[:, :, key, None] * wild[:, None, :], torch.zeros_like(out))
        out = out + torch.where(seen[:, :, key, None], term, torch.zeros_like(out))
    return out
