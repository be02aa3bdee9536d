"""FlashInfer's wrappers and flash-attn's functions cache nothing that depends on the values of an operand of a run: values
loaded into the same memory take effect. Tables are passed to plan() before."""

import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade.compat.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from tests.compat.pages import indptr, paged

HEADS, KV_HEADS, DIM, PAGE, LATENT, ROPE = 6, 2, 16, 4, 32, 8
LENS, ROWS = [9, 3, 4], [3, 1, 4]
SIZES = (HEADS, KV_HEADS, DIM)
F32 = {"q_data_type": torch.float32}


def buffer():
    return torch.empty(1 << 16, dtype=torch.uint8)


def table():
    torch.manual_seed(5)
    return paged(LENS, PAGE, KV_HEADS, DIM)


def pools():
    return {"k": table().k.shape, "v": table().k.shape}


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def decode():
    w = flashinfer.BatchDecodeWithPagedKVCacheWrapper(buffer())
    w.plan(*table().table, *SIZES, PAGE, **F32)
    shapes = {"q": (3, HEADS, DIM), **pools(), "sinks": (HEADS,), "k_scale": (1,), "v_scale": (1,)}
    return shapes, lambda q, k, v, **more: w.run(q, (k, v), **more)


def decode_in_a_graph():
    indptr_, indices, last = table().table
    w = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(buffer(), indptr_.clone(), indices.clone(), last.clone())
    w.plan(indptr_, indices, last, *SIZES, PAGE, **F32)
    return {"q": (3, HEADS, DIM), **pools()}, lambda q, k, v: w.run(q, (k, v))


def prefill():
    w = flashinfer.BatchPrefillWithPagedKVCacheWrapper(buffer())
    w.plan(indptr(*ROWS), *table().table, *SIZES, PAGE, causal=True, **F32)
    shapes = {"q": (sum(ROWS), HEADS, DIM), **pools(), "sinks": (HEADS,), "v_scale": (KV_HEADS,)}
    return shapes, lambda q, k, v, **more: w.run(q, (k, v), **more)


def ragged():
    w = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(buffer())
    w.plan(indptr(*ROWS), indptr(*LENS), *SIZES, causal=True, **F32)
    rows = (sum(LENS), KV_HEADS, DIM)
    return {"q": (sum(ROWS), HEADS, DIM), "k": rows, "v": rows, "sinks": (HEADS,), "q_scale": (HEADS,)}, w.run


def mixed():
    w, lens = flashinfer.BatchAttention("NHD", device="cpu"), i32(*LENS)
    starts, indices, _ = table().table
    w.plan(
        indptr(*ROWS), starts, indices, lens, HEADS, KV_HEADS, DIM, DIM, PAGE, True, None, None, torch.float32, torch.float32
    )
    return {"q": (sum(ROWS), HEADS, DIM), **pools()}, lambda q, k, v: w.run(q, (k, v))[0]


def latent():
    w = flashinfer.BatchMLAPagedAttentionWrapper(buffer())
    starts, indices, _ = table().table
    w.plan(indptr(1, 1, 1), starts, indices, i32(*LENS), HEADS, LATENT, ROPE, PAGE, True, 0.2, torch.float32, torch.float32)
    pages = table().k.shape[0]
    shapes = {"q": (3, HEADS, LATENT), "q_pe": (3, HEADS, ROPE), "k": (pages, PAGE, LATENT), "k_pe": (pages, PAGE, ROPE)}
    return shapes | {"sinks": (HEADS,)}, lambda q, q_pe, k, k_pe, **more: w.run(q, q_pe, k, k_pe, **more)


def older_latent():
    w, pages = flashinfer.BatchDecodeMlaWithPagedKVCacheWrapper(buffer()), table().k.shape[0]
    w.plan(*table().table, HEADS, LATENT, PAGE, 0.2, data_type=torch.float32)
    return {"q": (3, HEADS, LATENT), "q_pe": (3, HEADS, ROPE), "k": (pages, PAGE, LATENT), "k_pe": (pages, PAGE, ROPE)}, w.run


def cascade():
    w, (starts, indices, last) = flashinfer.MultiLevelCascadeAttentionWrapper(2, buffer(), "NHD"), table().table
    shared = i32(0, 1), i32(table().k.shape[0] - 1), i32(PAGE)
    w.plan([indptr(3), indptr(1, 1, 1)], *map(list, zip(shared, (starts, indices, last), strict=True)), *SIZES, PAGE, **F32)
    return {"q": (3, HEADS, DIM), **pools()}, lambda q, k, v: w.run(q, (k, v))


def shared_prefix():
    w, rows = flashinfer.BatchDecodeWithSharedPrefixPagedKVCacheWrapper(buffer()), (7, KV_HEADS, DIM)
    w.begin_forward(*table().table, *SIZES, PAGE, torch.float32)
    return {"q": (3, HEADS, DIM), "first": rows, "second": rows, **pools()}, lambda q, a, b, k, v: w.forward(q, a, b, (k, v))


def shared_prefix_prefill():
    w, rows = flashinfer.BatchPrefillWithSharedPrefixPagedKVCacheWrapper(buffer()), (7, KV_HEADS, DIM)
    w.begin_forward(indptr(*ROWS), *table().table, *SIZES, PAGE)
    shapes = {"q": (sum(ROWS), HEADS, DIM), "first": rows, "second": rows, **pools()}
    return shapes, lambda q, a, b, k, v: w.forward(q, a, b, (k, v), causal=True)


def segments():
    w = flashinfer.SegmentGEMMWrapper(buffer())
    shapes = {"x": (8, 16), "weights": (3, 24, 16)}
    return shapes, lambda x, weights: w.run(x.bfloat16(), weights.bfloat16(), 3, True, seg_indptr=indptr(*ROWS).long())


def dense():
    shapes = {"q": (2, 3, HEADS, DIM), "k": (2, 9, KV_HEADS, DIM), "v": (2, 9, KV_HEADS, DIM), "alibi_slopes": (HEADS,)}
    return shapes, lambda q, k, v, **more: flash_attn_func(q, k, v, causal=True, **more)


def dense_with_sinks():
    shapes = {"q": (2, 3, HEADS, DIM), "k": (2, 9, KV_HEADS, DIM), "v": (2, 9, KV_HEADS, DIM), "s_aux": (HEADS,)}
    return shapes, lambda q, k, v, **more: flash_attn_func(q, k, v, causal=True, **more)


def varlen():
    rows = (sum(LENS), KV_HEADS, DIM)
    shapes = {"q": (sum(ROWS), HEADS, DIM), "k": rows, "v": rows, "s_aux": (HEADS,)}
    tables = indptr(*ROWS), indptr(*LENS), max(ROWS), max(LENS)
    return shapes, lambda q, k, v, **more: flash_attn_varlen_func(q, k, v, *tables, causal=True, **more)


def cached():
    shapes = {"q": (2, 1, HEADS, DIM), "cache_k": (2, 12, KV_HEADS, DIM), "cache_v": (2, 12, KV_HEADS, DIM)}
    shapes |= dict.fromkeys(("k", "v"), (2, 1, KV_HEADS, DIM)) | {"rotary_cos": (12, 4), "rotary_sin": (12, 4)}

    def run(q, cache_k, cache_v, k, v, rotary_cos, rotary_sin):
        caches = cache_k.clone(), cache_v.clone()
        out = flash_attn_with_kvcache(q, *caches, k, v, rotary_cos, rotary_sin, cache_seqlens=i32(5, 9), causal=True)
        return torch.cat([out.flatten(), caches[0].flatten(), caches[1].flatten()])

    return shapes, run


CALLS = (
    decode, decode_in_a_graph, prefill, ragged, mixed, latent, older_latent, cascade, shared_prefix, shared_prefix_prefill,
    segments, dense, dense_with_sinks, varlen, cached,
)  # fmt: skip


def drawn(shapes, seed):
    torch.manual_seed(seed)
    return {name: torch.rand(shape) + 0.5 if "scale" in name else torch.randn(shape) for name, shape in shapes.items()}


FIRST = ("q", "q_pe", "k", "k_pe", "v", "x", "weights", "first", "second", "cache_k", "cache_v", "rotary_cos", "rotary_sin")


def called(run, given):
    """Passes the first operands by position and the options by name. The result is copied, because an output may be memory of
    the wrapper.
    """
    return run(*(x for name, x in given.items() if name in FIRST), **{n: x for n, x in given.items() if n not in FIRST}).clone()


@pytest.mark.parametrize("made", CALLS, ids=lambda made: made.__name__)
def test_operands_of_a_run_that_change_in_place_count_and_so_do_later_ones(made):
    shapes, run = made()
    held = drawn(shapes, 1)
    results = [called(run, held)]
    for seed in (2, 3):
        other = drawn(shapes, seed)
        for name, tensor in other.items():
            held[name].copy_(tensor)
        found = called(run, held)
        _, fresh = made()
        assert torch.equal(found, called(fresh, other))
        assert not torch.equal(found, results[-1])
        results.append(found)
