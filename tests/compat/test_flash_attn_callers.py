"""Calls in the form of flash-attn's own models, transformers and serving engines: which arguments, by position or by name."""

import inspect

import numpy as np
import pytest
import torch

from opfacade.compat.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from tests.compat.oracle import Scoring, attention, close

HEADS, KV_HEADS, DIM = 4, 2, 16


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(17)


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def dense(rows=6):
    return torch.randn(2, rows, HEADS, DIM), *torch.randn(2, 2, 6, KV_HEADS, DIM).unbind(0)


def test_flash_attns_own_modules():
    """flash_attn.modules.mha: inner attention, and a step of generation with a cache of K and V in one tensor."""
    q, k, v = dense()
    alibi = torch.rand(HEADS)
    given = {"dropout_p": 0.0, "softmax_scale": None, "causal": True, "alibi_slopes": alibi, "window_size": (-1, -1)}
    o = flash_attn_func(q, k, v, deterministic=False, **given)
    close(o[0], attention(q[0], k[0], v[0], Scoring(causal=True, slopes=alibi))[0])
    kv_cache = torch.randn(2, 12, 2, KV_HEADS, DIM)
    kv = torch.randn(2, 1, 2, KV_HEADS, DIM)
    out = flash_attn_with_kvcache(
        q[:, :1], kv_cache[:, :, 0], kv_cache[:, :, 1], kv[:, :, 0], kv[:, :, 1], rotary_cos=None, rotary_sin=None,
        cache_seqlens=5, softmax_scale=None, causal=True, rotary_interleaved=False, alibi_slopes=None,
    )  # fmt: skip
    assert torch.equal(kv_cache[:, 5], kv[:, 0])
    close(out[1], attention(q[1, :1], kv_cache[1, :6, 0], kv_cache[1, :6, 1], Scoring(causal=True))[0])


def test_transformers_asks_which_arguments_there_are_and_passes_those():
    """transformers.modeling_flash_attention_utils: support is read from the signature."""
    known = inspect.signature(flash_attn_varlen_func).parameters
    assert {"dropout_p", "window_size", "deterministic", "softcap", "s_aux"} <= set(known)
    q, k, v = dense()
    sinks = torch.randn(HEADS)
    o = flash_attn_func(
        q,
        k,
        v,
        dropout_p=np.float64(0.0),
        softmax_scale=0.3,
        causal=True,
        window_size=(3, 3),
        deterministic=True,
        softcap=2.0,
        s_aux=sinks,
    )
    want = Scoring(scale=0.3, causal=True, left=3, cap=2.0, sinks=sinks)
    close(o[1], attention(q[1], k[1], v[1], want)[0])


def test_transformers_unpads_and_packs():
    """Padded rows are removed; lengths are cumulative, and the maximum is an int or a tensor."""
    lens = [4, 6]
    q, k, v = (torch.cat([x[b, : lens[b]] for b in range(2)]) for x in dense())
    cu = i32(0, 4, 10)
    longest = torch.tensor(6)
    o = flash_attn_varlen_func(
        q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=longest, max_seqlen_k=longest, dropout_p=0.0,
        softmax_scale=None, causal=True, window_size=(-1, -1),
    )  # fmt: skip
    for own in (slice(0, 4), slice(4, 10)):
        close(o[own], attention(q[own], k[own], v[own], Scoring(causal=True))[0])


def test_continuous_batching_pads_rows_and_repeats_the_last_length():
    """Rows past the last entry belong to no request; requests without rows have a block table of -1."""
    k, v = torch.randn(2, 7, 4, KV_HEADS, DIM).unbind(0)
    table = i32(3, 1, 5, -1, -1, -1).view(3, 2)
    q, cu = torch.randn(8, HEADS, DIM), i32(0, 2, 3, 3)
    o = flash_attn_varlen_func(
        q, k, v, cu_seqlens_q=cu, cu_seqlens_k=i32(0, 6, 9, 9), max_seqlen_q=8, max_seqlen_k=9, softmax_scale=None,
        causal=True, window_size=(-1, -1), block_table=table,
    )  # fmt: skip
    for own, pages, length in ((slice(0, 2), [3, 1], 6), (slice(2, 3), [5], 3)):
        keys, values = (x[pages].flatten(0, 1)[:length] for x in (k, v))
        close(o[own], attention(q[own], keys, values, Scoring(causal=True))[0])


def test_serving_engines_pass_by_name():
    """A decode step and a prefill over pages, as passed by nano-vllm and vLLM's backend."""
    k, v = torch.randn(2, 9, 4, KV_HEADS, DIM).unbind(0)
    q, lens, table = torch.randn(3, HEADS, DIM), i32(5, 8, 1), torch.randperm(9)[:6].view(3, 2).int()
    o = flash_attn_with_kvcache(q.unsqueeze(1), k, v, cache_seqlens=lens, block_table=table, softmax_scale=0.25, causal=True)
    out = torch.full_like(q, torch.nan)
    flash_attn_varlen_func(
        q=q, k=k, v=v, out=out, cu_seqlens_q=i32(0, 1, 2, 3), cu_seqlens_k=None, max_seqlen_q=1, seqused_k=lens, max_seqlen_k=8,
        softmax_scale=0.25, causal=True, alibi_slopes=None, window_size=[-1, -1], block_table=table, softcap=0.0, num_splits=0,
        q_descale=None, k_descale=None, v_descale=None, s_aux=None,
    )  # fmt: skip
    close(o[:, 0], out)
    for b in range(3):
        keys, values = (x[table[b].long()].flatten(0, 1)[: int(lens[b])] for x in (k, v))
        close(out[b : b + 1], attention(q[b : b + 1], keys, values, Scoring(scale=0.25))[0])


def test_a_static_cache_that_is_longer_than_its_tokens():
    k, v = torch.randn(2, 2, 16, KV_HEADS, DIM).unbind(0)
    q = torch.randn(2, 3, HEADS, DIM)
    o = flash_attn_with_kvcache(q, k, v, cache_seqlens=i32(9, 4), causal=True, num_splits=1)
    for b, length in enumerate((9, 4)):
        close(o[b], attention(q[b], k[b, :length], v[b, :length], Scoring(causal=True))[0])
