"""Attention, append and merge one element at a time in float64, from docs/design.md; shares no code with the library."""

import math

import numpy as np
import torch

from tests.support.naive_variant import Request


def attend(q, k, v, *, scale, causal=False, window=-1, cap=0.0, sinks=None, varied=None):
    """q [n, heads, dim]; k, v [m, kv_heads, dim]; float64 in and out: o [n, heads, dim], lse [n, heads]."""
    (n, heads, _), (m, kv_heads, _) = q.shape, k.shape
    o, lse = np.zeros((n, heads, v.shape[-1])), np.full((n, heads), -math.inf)
    sinks = np.full(heads, -math.inf) if sinks is None else sinks
    lse[:] = sinks
    for i in range(n):
        position = i + m - n
        near = [j for j in range(m) if (not causal or j <= position) and (window < 0 or j >= position - window)]
        for h in range(heads):
            own = h // (heads // kv_heads)
            seen = near if varied is None else [j for j in near if varied.sees(i, j, h)]
            if not seen:
                continue
            row = q[i, h] if varied is None else varied.query(q[i, h], i, h)
            scores = np.array([scale * sum(float(a) * float(b) for a, b in zip(row, k[j, own], strict=True)) for j in seen])
            if cap > 0:
                scores = cap * np.tanh(scores / cap)
            if varied is not None:
                scores = np.array([varied.score(s, i, j, h) for s, j in zip(scores, seen, strict=True)])
            top = max(scores.max(), sinks[h]) if not np.isnan(scores).any() else math.nan
            p = np.exp(scores - top)
            total = p.sum() + np.exp(sinks[h] - top)
            o[i, h] = sum(weight * v[j, own] for weight, j in zip(p, seen, strict=True)) / total
            lse[i, h] = top + math.log(total) if not math.isnan(top) else math.nan
    return o, lse


def wide(tensor):
    return tensor.to(torch.float64).numpy()


def locations(args, page_size):
    """For each request the (page, slot) of each of its tokens."""
    found = []
    if args.block_table is not None:
        for row, length in zip(args.block_table.tolist(), args.kv_lens.tolist(), strict=True):
            found.append([(row[t // page_size], t % page_size) for t in range(length)])
        return found
    indptr, indices, last = args.kv_indptr.tolist(), args.kv_indices.tolist(), args.last_page_len.tolist()
    for b, last_len in enumerate(last):
        pages = indices[indptr[b] : indptr[b + 1]]
        length = (len(pages) - 1) * page_size + last_len if pages else 0
        found.append([(pages[t // page_size], t % page_size) for t in range(length)])
    return found


def slot(pool, layout, page, token):
    """[kv_heads, head_dim] of one token of a pool."""
    return pool[page, :, token] if layout == "HND" else pool[page, token]


def paged(descriptor, args):
    """o and lse of a paged prefill or decode."""
    cache = descriptor.paged_kv
    indptr = args.q_indptr.tolist() if hasattr(args, "q_indptr") else list(range(descriptor.batch_size + 1))
    q, k_pool, v_pool = queries(args), wide(args.k_data), wide(args.v_data)
    o, lse = np.zeros(q.shape), np.full(q.shape[:2], -math.inf)
    for b, tokens in enumerate(locations(args, cache.page_size)):
        rows = slice(indptr[b], indptr[b + 1])
        empty = np.zeros((0, cache.num_kv_heads, cache.head_dim))
        k, v = (np.stack([slot(p, cache.layout, *t) for t in tokens]) if tokens else empty for p in (k_pool, v_pool))
        k, v = scaled(k, args.k_scale), scaled(v, args.v_scale)
        more = varied(descriptor, args, b, rows, tokens)
        o[rows], lse[rows] = attend(q[rows], k, v, **scoring(descriptor, args), varied=more)
    return o, lse


def queries(args):
    """q times its factor, or that of its KV head."""
    q, factors = wide(args.q), getattr(args, "q_scale", None)
    return q if factors is None else q * np.repeat(wide(factors), q.shape[1] // len(factors))[None, :, None]


def scaled(rows, factors):
    """[n, kv_heads, dim] times one factor, or one for each KV head."""
    return rows if factors is None else rows * wide(factors).reshape(1, -1, 1)


def ragged(descriptor, args):
    """o and lse of a ragged prefill."""
    q, k, v = queries(args), wide(args.k), wide(args.v)
    o, lse = np.zeros(args.o.shape), np.full(q.shape[:2], -math.inf)
    q_indptr, kv_indptr = args.q_indptr.tolist(), args.kv_indptr.tolist()
    for b in range(descriptor.batch_size):
        rows, keys = slice(q_indptr[b], q_indptr[b + 1]), slice(kv_indptr[b], kv_indptr[b + 1])
        more = varied(descriptor, args, b, rows, [(j,) for j in range(keys.start, keys.stop)])
        o[rows], lse[rows] = attend(q[rows], k[keys], v[keys], **scoring(descriptor, args), varied=more)
    return o, lse


def varied(descriptor, args, request, rows, places):
    """A variant or a mask in one request, or None."""
    if getattr(descriptor, "variant", None) is None and not getattr(descriptor, "custom_mask", False):
        return None
    return Request(descriptor, args, request, rows.start, rows.stop - rows.start, places)


def mla(descriptor, args):
    """o and lse of a latent decode."""
    q, keys = (np.concatenate([wide(a), wide(b)], -1) for a, b in ((args.q_nope, args.q_pe), (args.ckv, args.kpe)))
    o, lse = np.zeros(args.o.shape), np.zeros(args.o.shape[:2])
    for b, tokens in enumerate(locations(args, descriptor.paged_kv.page_size)):
        k = np.stack([keys[t] for t in tokens])[:, None] if tokens else np.zeros((0, 1, q.shape[-1]))
        values = k[..., : args.ckv.shape[-1]]
        rows = slice(b * descriptor.q_len, (b + 1) * descriptor.q_len)
        o[rows], lse[rows] = attend(q[rows], k, values, **scoring(descriptor, args))
    return o, lse


def width(descriptor):
    """Elements of a head that the usual scale is made of."""
    if not hasattr(descriptor, "paged_kv"):
        return descriptor.head_dim
    return getattr(descriptor.paged_kv, "head_dim", 128 + 64)


def scoring(descriptor, args):
    scale = 1 / math.sqrt(width(descriptor)) if descriptor.sm_scale is None else descriptor.sm_scale
    causal = getattr(descriptor, "causal", False)
    sinks = wide(args.sinks) if descriptor.sinks else None
    return {
        "scale": scale,
        "causal": causal,
        "window": descriptor.window_left,
        "cap": descriptor.logits_soft_cap,
        "sinks": sinks,
    }


def merge(states_o, states_lse):
    """o [rows, heads, dim] and lse [rows, heads] of [states, ...]."""
    _, rows, heads, dim = states_o.shape
    o, lse = np.zeros((rows, heads, dim)), np.full((rows, heads), -math.inf)
    for r in range(rows):
        for h in range(heads):
            live = [s for s in range(states_o.shape[0]) if states_lse[s, r, h] != -math.inf]
            if live:
                top = max(states_lse[s, r, h] for s in live)
                weights = [math.exp(states_lse[s, r, h] - top) for s in live]
                o[r, h] = sum(w * states_o[s, r, h] for w, s in zip(weights, live, strict=True)) / sum(weights)
                lse[r, h] = top + math.log(sum(weights))
    return o, lse


# One rounding to the output's dtype (relative, then the absolute step of its subnormals).
_ROUNDING = {
    torch.float16: (2**-11, 2**-25),
    torch.bfloat16: (2**-8, 2**-134),
    torch.float32: (2**-24, 2**-150),
    torch.float8_e4m3fn: (2**-4, 2**-10),
    torch.float8_e5m2: (2**-3, 2**-17),
}


def assert_rounded(got, want, magnitude=1.0, arithmetic=None):
    """`got` is `want` after arithmetic with a relative error of `arithmetic` of `magnitude`, and one rounding."""
    if arithmetic is None:
        arithmetic = 1e-14 if got.dtype == torch.float32 else 4e-6
    relative, absolute = _ROUNDING[got.dtype]
    value = wide(got)
    assert value.shape == want.shape
    assert (np.isnan(value) == np.isnan(want)).all(), "NaN in other places"
    infinite = np.isinf(want)
    assert (value[infinite] == want[infinite]).all()
    fine = np.isfinite(want)
    error = np.abs(value[fine] - want[fine])
    allowed = relative * np.abs(want[fine]) + absolute + 1.01 * arithmetic * magnitude * (1 + relative)
    assert (error <= allowed).all(), f"worst excess {(error - allowed).max()}"
