"""flash_attn_func and flash_attn_varlen_func against a dense oracle in float64; their return forms and refusals."""

import pytest
import torch

import opfacade.compat.flash_attn
from opfacade.compat.flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from opfacade.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    GradNotSupportedError,
    OpfacadeError,
    ShapeError,
    UnsupportedError,
)
from tests.compat.oracle import Scoring, attention, close

HEADS, KV_HEADS, DIM = 6, 2, 16


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(7)


def dense(batch=3, rows=5, keys=9, dim_vo=DIM, dtype=torch.float32):
    q = torch.randn(batch, rows, HEADS, DIM, dtype=dtype)
    return q, torch.randn(batch, keys, KV_HEADS, DIM, dtype=dtype), torch.randn(batch, keys, KV_HEADS, dim_vo, dtype=dtype)


def check(result, q, k, v, scorings):
    out, lse, probabilities = result
    assert out.shape == (*q.shape[:3], v.shape[-1])
    assert out.dtype == q.dtype
    assert lse.shape == (q.shape[0], q.shape[2], q.shape[1])
    assert lse.dtype == torch.float32
    assert lse.is_contiguous()
    assert probabilities.numel() == 0
    for b, scoring in enumerate(scorings):
        o, natural = attention(q[b], k[b], v[b], scoring)
        close(out[b], o)
        close(lse[b], natural.T, torch.float32)


FORMS = {
    "plain": ({}, {}),
    "causal": ({"causal": True}, {"causal": True}),
    "scale": ({"softmax_scale": 0.4}, {"scale": 0.4}),
    "no scale": ({"softmax_scale": 0.0}, {"scale": 0.0}),
    "left": ({"window_size": (2, -1)}, {"left": 2}),
    "right": ({"window_size": (-1, 1)}, {"right": 1}),
    "right of zero": ({"window_size": (-1, 0)}, {"causal": True}),
    "both": ({"window_size": (3, 2)}, {"left": 3, "right": 2}),
    "causal with a right window": ({"causal": True, "window_size": (3, 2)}, {"causal": True, "left": 3}),
    "no window": ({"window_size": (None, None)}, {}),
    "windows of all keys": ({"window_size": (2**31 - 1, 2**31 - 1)}, {}),
    "windows beyond an i32": ({"window_size": (2**40, 2**40)}, {}),
    "a left window and no right end": ({"window_size": (2, 2**31 - 3)}, {"left": 2}),
    "cap": ({"softcap": 1.5, "causal": True}, {"cap": 1.5, "causal": True}),
    "cap and both": ({"softcap": 1.5, "window_size": (3, 2)}, {"cap": 1.5, "left": 3, "right": 2}),
    "hints": ({"deterministic": True, "pack_gqa": True, "sm_margin": 4, "num_splits": 3}, {}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rows", "keys"), [(5, 9), (1, 9), (7, 3)])
def test_each_form_of_scores(form, rows, keys):
    given, meant = FORMS[form]
    q, k, v = dense(rows=rows, keys=keys)
    check(flash_attn_func(q, k, v, return_attn_probs=True, **given), q, k, v, [Scoring(**meant)] * 3)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("cap", [0.0, 1.5])
@pytest.mark.parametrize("form", ["heads", "batch", "expanded"])
@pytest.mark.parametrize("rows", [5, 1])
def test_slopes_of_heads_and_of_requests(causal, cap, form, rows):
    q, k, v = dense(rows=rows)
    slopes = torch.rand(3, HEADS) if form == "batch" else torch.rand(HEADS).expand(3, HEADS)
    given = slopes[0] if form == "heads" else slopes
    result = flash_attn_func(q, k, v, causal=causal, softcap=cap, alibi_slopes=given, return_attn_probs=True)
    check(result, q, k, v, [Scoring(causal=causal, cap=cap, slopes=slopes[b]) for b in range(3)])


@pytest.mark.parametrize("rows", [5, 1])
@pytest.mark.parametrize("slopes", [None, "batch"])
def test_parts_of_a_packed_tensor_of_odd_heads_in_16_bits(rows, slopes):
    """The tensors begin at addresses that are not aligned to 16 bytes."""
    heads, dim = 3, 59
    q, k, v = torch.randn(3, rows, 3 * heads, dim, dtype=torch.float16).split(heads, 2)
    assert k.data_ptr() % 16
    given = None if slopes is None else torch.rand(3, heads)
    out = flash_attn_func(q, k, v, causal=True, alibi_slopes=given)
    for b in range(3):
        o, _ = attention(q[b], k[b], v[b], Scoring(causal=True, slopes=None if given is None else given[b]))
        torch.testing.assert_close(out[b].double(), o, rtol=4e-3, atol=4e-3)


def test_slopes_and_a_window_on_both_sides():
    q, k, v = dense()
    slopes = torch.rand(HEADS)
    result = flash_attn_func(q, k, v, window_size=(3, 2), alibi_slopes=slopes, return_attn_probs=True)
    check(result, q, k, v, [Scoring(left=3, right=2, slopes=slopes)] * 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_dtypes(dtype):
    q, k, v = dense(dtype=dtype)
    check(flash_attn_func(q, k, v, causal=True, return_attn_probs=True), q, k, v, [Scoring(causal=True)] * 3)


def test_sinks():
    q, k, v = dense()
    sinks = torch.randn(HEADS)
    result = flash_attn_func(q, k, v, causal=True, s_aux=sinks.bfloat16(), return_attn_probs=True)
    check(result, q, k, v, [Scoring(causal=True, sinks=sinks.bfloat16())] * 3)


def test_values_of_another_width():
    q, k, v = dense(dim_vo=24)
    check(flash_attn_func(q, k, v, return_attn_probs=True), q, k, v, [Scoring()] * 3)


def test_heads_before_rows_in_memory(monkeypatch):
    """Non-contiguous rows of requests are read in place, as pages."""
    monkeypatch.setattr("opfacade.compat.flash_attn.dense.over_rows", None)
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in dense())
    assert not k.is_contiguous()
    check(flash_attn_func(q, k, v, causal=True, return_attn_probs=True), q, k, v, [Scoring(causal=True)] * 3)


def test_without_keys_nothing_is_seen():
    q, k, v = dense(keys=0)
    out, lse, _ = flash_attn_func(q, k, v, return_attn_probs=True)
    assert bool((out == 0).all())
    assert bool((lse == -torch.inf).all())


@pytest.mark.parametrize(("batch", "rows"), [(0, 5), (3, 0)])
def test_nothing_is_legal(batch, rows):
    q, k, v = dense(batch=batch, rows=rows)
    assert flash_attn_func(q, k, v).shape == q.shape


def test_no_request_has_rows_and_slopes_of_its_own():
    q, k, slopes = torch.randn(0, 3, 4, 16), torch.randn(0, 5, 2, 16), torch.randn(0, 4)
    for given in (None, slopes):
        o, lse, _ = flash_attn_func(q, k, k, alibi_slopes=given, return_attn_probs=True)
        assert (o.shape, lse.shape) == ((0, 3, 4, 16), (0, 4, 3))
        cache = torch.randn(2, 5, 2, 16)
        o, lse = flash_attn_with_kvcache(q, cache, cache, alibi_slopes=given, return_softmax_lse=True)
        assert (o.shape, lse.shape) == ((0, 3, 4, 16), (0, 4, 3))


def test_it_returns_the_output_alone():
    q, k, v = dense()
    out = flash_attn_func(q, k, v, 0.0, 0.4, True, (3, -1))
    torch.testing.assert_close(out[1].double(), attention(q[1], k[1], v[1], Scoring(0.4, True, 3))[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("dropout_p", 0.1),
        ("qv", torch.zeros(1)),
        ("attention_chunk", 64),
        ("q_descale", torch.ones(1)),
        ("k_descale", torch.ones(1)),
    ],
)
def test_what_is_not_mapped_is_refused_by_its_name(argument, value):
    q, k, v = dense()
    with pytest.raises(UnsupportedError, match=rf"flash_attn_func.call: {argument} expected .*OPF-C001"):
        flash_attn_func(q, k, v, **{argument: value})


@pytest.mark.parametrize("which", [0, 1, 2])
def test_gradients_are_refused_by_name(which):
    tensors = list(dense())
    tensors[which].requires_grad_()
    with pytest.raises(GradNotSupportedError, match=rf"flash_attn_func.call: {'qkv'[which]} expected .*OPF-C006"):
        flash_attn_func(*tensors)
    with torch.no_grad():
        assert flash_attn_func(*tensors).shape == tensors[0].shape


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"q": torch.zeros(3, 5, HEADS)}, ShapeError, "q"),
        ({"q": None}, ArgumentTypeError, "q"),
        ({"k": [1]}, ArgumentTypeError, "k"),
        ({"v": torch.zeros(3, 8, KV_HEADS, DIM)}, ShapeError, "v"),
        ({"k": torch.zeros(2, 9, KV_HEADS, DIM)}, ShapeError, "k"),
        ({"v": torch.zeros(3, 9, KV_HEADS, DIM, dtype=torch.float16)}, DTypeError, "v"),
        ({"q": torch.zeros(3, 5, HEADS, DIM, dtype=torch.float64)}, UnsupportedError, "q"),
        ({"q": torch.zeros(3, 5, HEADS, 8)}, ShapeError, "q"),
        ({"window_size": 3}, ArgumentError, "window_size"),
        ({"alibi_slopes": torch.zeros(4)}, ShapeError, "alibi_slopes"),
        ({"s_aux": torch.zeros(4)}, ShapeError, "s_aux"),
        ({"num_splits": -1}, ArgumentError, "num_splits"),
    ],
)
def test_wrong_arguments_are_named(change, error, named):
    q, k, v = dense()
    with pytest.raises(error, match=rf"\b{named} expected"):
        flash_attn_func(**({"q": q, "k": k, "v": v} | change))


def indptr(*lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def check_ragged(result, q, k, v, cu_q, cu_k, scoring):
    out, lse, _ = result
    assert lse.shape == (q.shape[1], q.shape[0])
    for b in range(cu_q.numel() - 1):
        rows, keys = slice(*cu_q[b : b + 2].tolist()), slice(*cu_k[b : b + 2].tolist())
        o, natural = attention(q[rows], k[keys], v[keys], scoring)
        close(out[rows], o)
        close(lse[:, rows], natural.T, torch.float32)


@pytest.mark.parametrize("form", FORMS)
def test_requests_of_their_own_lengths(form):
    given, meant = FORMS[form]
    cu_q, cu_k = indptr(4, 0, 7, 1), indptr(6, 3, 7, 0)
    q, k, v = torch.randn(12, HEADS, DIM), torch.randn(16, KV_HEADS, DIM), torch.randn(16, KV_HEADS, DIM)
    result = flash_attn_varlen_func(q, k, v, cu_q, cu_k, 7, 7, return_attn_probs=True, **given)
    check_ragged(result, q, k, v, cu_q, cu_k, Scoring(**meant))


def test_ragged_slopes_and_packed_forms():
    cu, slopes = indptr(4, 7), torch.rand(HEADS)
    qkv = torch.randn(11, 3, HEADS, DIM)
    given = {"causal": True, "alibi_slopes": slopes, "return_attn_probs": True}
    scoring = Scoring(causal=True, slopes=slopes)
    result = flash_attn_varlen_qkvpacked_func(qkv, cu, 7, **given)
    check_ragged(result, *qkv.unbind(1), cu, cu, scoring)
    again = flash_attn_varlen_kvpacked_func(qkv[:, 0], qkv[:, 1:], cu, cu, 7, 7, **given)
    assert all(torch.equal(a, b) for a, b in zip(result, again, strict=True))


def test_packed_forms():
    qkv = torch.randn(2, 5, 3, HEADS, DIM)
    result = flash_attn_qkvpacked_func(qkv, causal=True, return_attn_probs=True)
    check(result, *qkv.unbind(2), [Scoring(causal=True)] * 2)
    again = flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], causal=True, return_attn_probs=True)
    assert all(torch.equal(a, b) for a, b in zip(result, again, strict=True))


PAGE = 4


def paged(lengths, dtype=torch.float32):
    """Pages in random order, and the rows in them."""
    width = max(-(-n // PAGE) for n in lengths)
    pages = torch.randperm(len(lengths) * width + 3)
    table = torch.full((len(lengths), width), -1, dtype=torch.int32)
    pools = [torch.full((pages.numel(), PAGE, KV_HEADS, DIM), torch.nan, dtype=dtype) for _ in "kv"]
    rows = [torch.randn(sum(lengths), KV_HEADS, DIM).to(dtype) for _ in "kv"]
    at = 0
    for b, length in enumerate(lengths):
        for t in range(length):
            table[b, t // PAGE] = pages[b * width + t // PAGE]
            for pool, new in zip(pools, rows, strict=True):
                pool[table[b, t // PAGE], t % PAGE] = new[at]
            at += 1
    return pools, table, rows


@pytest.mark.parametrize("how", ["seqused_k", "cu_seqlens_k"])
def test_varlen_over_pages(how):
    lengths = [6, 3, 9]
    (k, v), table, rows = paged(lengths)
    q, cu_q, cu_k = torch.randn(8, HEADS, DIM), indptr(2, 3, 3), indptr(*lengths)
    used = {"seqused_k": torch.tensor(lengths, dtype=torch.int32)} if how == "seqused_k" else {}
    cu = None if how == "seqused_k" else cu_k
    given = {"causal": True, "block_table": table, "return_attn_probs": True, **used}
    result = flash_attn_varlen_func(q, k, v, cu_q, cu, 3, 9, **given)
    check_ragged(result, q, *rows, cu_q, cu_k, Scoring(causal=True))


def test_fp8_pages_with_descales_that_are_expanded_over_the_batch():
    lengths, scales = [6, 3], (torch.tensor([0.5, 2.0]), torch.tensor([0.25]))
    (k, v), table, _ = paged(lengths)
    k, v = (x.nan_to_num(0.0).to(torch.float8_e4m3fn) for x in (k, v))
    q, cu_q = torch.randn(5, HEADS, DIM), indptr(2, 3)
    descales = {"k_descale": scales[0].expand(2, KV_HEADS), "v_descale": scales[1].expand(2, KV_HEADS)}
    lens = torch.tensor(lengths, dtype=torch.int32)
    out = flash_attn_varlen_func(q, k, v, cu_q, None, 3, 6, block_table=table, seqused_k=lens, **descales)
    for b, rows in enumerate((slice(0, 2), slice(2, 5))):
        at = table[b].clamp(min=0).long()
        own = [x[at].flatten(0, 1)[: lengths[b]].float() for x in (k, v)]
        close(out[rows], attention(q[rows], own[0] * scales[0][:, None], own[1] * scales[1])[0])


def test_an_fp8_query_has_a_factor_for_each_kv_head():
    lengths, scales = [6, 3], torch.tensor([0.5, 2.0])
    (k, v), table, _ = paged(lengths)
    k, v = (x.nan_to_num(0.0).to(torch.float8_e4m3fn) for x in (k, v))
    q, cu_q = torch.randn(5, HEADS, DIM).to(torch.float8_e4m3fn), indptr(2, 3)
    lens = torch.tensor(lengths, dtype=torch.int32)
    descale = scales.expand(2, KV_HEADS)
    out = flash_attn_varlen_func(q, k, v, cu_q, None, 3, 6, block_table=table, seqused_k=lens, q_descale=descale)
    assert out.dtype == torch.bfloat16
    exact = q.float() * scales.repeat_interleave(HEADS // KV_HEADS)[:, None]
    for b, rows in enumerate((slice(0, 2), slice(2, 5))):
        at = table[b].clamp(min=0).long()
        own = [x[at].flatten(0, 1)[: lengths[b]].float() for x in (k, v)]
        torch.testing.assert_close(out[rows].double(), attention(exact[rows], *own)[0], rtol=2.0**-7, atol=1e-4)


def test_an_output_that_is_given_is_written():
    q, cu = torch.randn(5, HEADS, DIM), indptr(2, 3)
    k, v = torch.randn(2, 5, KV_HEADS, DIM).unbind(0)
    out = torch.full_like(q, torch.nan)
    assert flash_attn_varlen_func(q, k, v, cu, cu, 3, 3, out=out) is out
    assert torch.equal(out, flash_attn_varlen_func(q, k, v, cu, cu, 3, 3))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"alibi_slopes": torch.rand(2, HEADS)}, "alibi_slopes"),
        ({"dropout_p": 0.5}, "dropout_p"),
        ({"seqused_q": torch.zeros(2)}, "seqused_q"),
        ({"leftpad_k": torch.zeros(2)}, "leftpad_k"),
        ({"seqused_k": torch.zeros(2)}, "seqused_k"),
        ({"k_descale": torch.ones(2)}, "k_descale"),
        ({"cu_seqlens_q": indptr(2, 3).long()}, "cu_seqlens_q"),
        ({"cu_seqlens_k": None}, "cu_seqlens_k"),
        ({"k": torch.zeros(5, KV_HEADS, 8)}, "q"),
    ],
)
def test_varlen_refuses_by_name(change, named):
    q, cu = torch.randn(5, HEADS, DIM), indptr(2, 3)
    k, v = torch.randn(2, 5, KV_HEADS, DIM).unbind(0)
    given = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 3, "max_seqlen_k": 3}
    with pytest.raises(OpfacadeError, match=rf"\b{named} expected"):
        flash_attn_varlen_func(**(given | change))


def test_a_function_that_the_adapter_lacks_is_named_with_the_page_that_lists_all():
    expected = r"flash_attn_gpu expected a name of opfacade\.compat\.flash_attn, .* docs/migrating\.md says .*OPF-C008"
    with pytest.raises(AttributeError, match=expected):
        _ = opfacade.compat.flash_attn.flash_attn_gpu
