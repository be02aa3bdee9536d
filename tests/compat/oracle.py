"""Attention in float64 as documented by flash-attn and FlashInfer, for one request; it shares no code with the library."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Scoring:
    """left, right: window sizes; None is unlimited. slopes [heads]: -slope * |distance|, or with from_row slope * (key - row
    number). first_key: keys before it are hidden. sinks [heads]."""

    scale: float | None = None
    causal: bool = False
    left: int | None = None
    right: int | None = None
    cap: float = 0.0
    slopes: object = None
    from_row: bool = False
    first_key: int = 0
    sinks: object = None
    mask: object = None


def attention(q, k, v, s=None):
    """q [n, heads, dim]; k, v [m, kv_heads, dim]. o [n, heads, dim_vo] and natural lse [n, heads], float64."""
    s = Scoring() if s is None else s
    (n, heads, dim), (m, kv_heads, _) = q.shape, k.shape
    group = heads // kv_heads
    scores = torch.einsum("nhd,mhd->hnm", q.double(), k.double().repeat_interleave(group, 1))
    scores = scores * (dim**-0.5 if s.scale is None else s.scale)
    row, key = torch.arange(n)[:, None], torch.arange(m)[None]
    position = row + m - n
    if s.from_row:
        scores = scores + s.slopes.double()[:, None, None] * (key - row)
    if s.cap:
        scores = s.cap * torch.tanh(scores / s.cap)
    if s.slopes is not None and not s.from_row:
        scores = scores - s.slopes.double()[:, None, None] * (key - position).abs()
    seen = (key >= s.first_key).expand(n, m)
    if s.causal:
        seen = seen & (key <= position)
    if s.left is not None:
        seen = seen & (key >= position - s.left)
    if s.right is not None:
        seen = seen & (key <= position + s.right)
    if s.mask is not None:
        seen = seen & s.mask
    scores = scores.masked_fill(~seen, -torch.inf)
    if s.sinks is not None:
        scores = torch.cat([scores, s.sinks.double()[:, None, None].expand(heads, n, 1)], -1)
    lse = scores.logsumexp(-1) if scores.shape[-1] else torch.full((heads, n), -torch.inf, dtype=torch.float64)
    weights = torch.where(lse[..., None] == -torch.inf, 0.0, (scores - lse[..., None]).exp())[..., :m]
    o = torch.einsum("hnm,mhd->nhd", weights, v.double().repeat_interleave(group, 1))
    return o, lse.T


def close(got, want, dtype=None):
    """Equal within one rounding to the dtype of the result, plus the last bits of the arithmetic."""
    unit = {torch.float32: 2**-22, torch.float16: 2**-10, torch.bfloat16: 2**-7}[dtype or got.dtype]
    torch.testing.assert_close(got.double(), want.double(), rtol=unit, atol=unit * 4)
