"""Shared by the examples: the device, random tensors, and attention in float64, with which results are compared."""

import math

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def bf16(*shape):
    return torch.randn(*shape, device=DEVICE).bfloat16()


def f32(*shape):
    return torch.randn(*shape, device=DEVICE)


def i32(values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def rows_of(pool, pages, length):
    """The rows [length, heads, dim] of one request in a pool [pages, tokens, heads, dim]."""
    return pool[torch.tensor(pages, device=pool.device)].flatten(0, 1)[:length]


def attention(q, k, v, causal=False, window=None, sinks=None, bias=None, seen=None):
    """o of q [n, heads, dim] over k and v [m, kv_heads, dim], in float64; the last row of q is at the last key."""
    (n, heads, dim), (m, kv_heads, _) = q.shape, k.shape
    q, k, v = q.double(), *(x.double().repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    row = torch.arange(m - n, m, device=q.device)[:, None]
    key = torch.arange(m, device=q.device)[None]
    scores = torch.einsum("nhd,mhd->hnm", q, k) / math.sqrt(dim) + (0 if bias is None else bias)
    hidden = torch.zeros(n, m, dtype=torch.bool, device=q.device)
    hidden |= (key > row) if causal else False
    hidden |= (key < row - window) if window is not None else False
    hidden |= ~seen if seen is not None else False
    scores = scores.masked_fill(hidden, -math.inf)
    if sinks is not None:  # a logit that gets weight but has no value
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, n, 1)], -1)
        v = torch.cat([v, torch.zeros_like(v[:1])])
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v)


def near(got, want, tolerance=2e-2):
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)
