"""The expected result of an adapter: causal attention of requests over pages, by a formula in f64, one request at a time."""

import math

import torch


def expected(q, q_lens, k_of, v_of, *, window=0, causal=True, scale=0.25, cap=0.0, sinks=None):
    """q [rows, heads, dim]; k_of, v_of: each request's [kv_len, kv_heads, dim]."""
    outputs, first = [], 0
    for q_len, k, v in zip(q_lens, k_of, v_of, strict=True):
        rows = q[first : first + q_len].double().transpose(0, 1)
        k, v = (x.double().repeat_interleave(q.shape[1] // x.shape[1], 1).transpose(0, 1) for x in (k, v))
        scores = rows @ k.mT * scale
        scores = cap * torch.tanh(scores / cap) if cap else scores
        i, j = torch.arange(q_len)[:, None] + k.shape[1] - q_len, torch.arange(k.shape[1])
        hidden = (j > i) if causal else torch.zeros(q_len, k.shape[1], dtype=torch.bool)
        hidden = hidden | (j <= i - window) if window else hidden
        scores = scores.masked_fill(hidden, -math.inf)
        extra = [] if sinks is None else [sinks.double().view(-1, 1, 1).expand(-1, q_len, 1)]
        weights = torch.softmax(torch.cat([scores, *extra], -1), -1)[..., : k.shape[1]]
        outputs.append((weights @ v).transpose(0, 1))
        first += q_len
    return torch.cat(outputs).to(q.dtype)


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)
