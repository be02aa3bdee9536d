"""flash_attn_with_kvcache: rows in place, angles, pages, padding and windows, against a dense oracle in float64."""

import pytest
import torch

from opfacade.compat.flash_attn import flash_attn_with_kvcache
from opfacade.errors import ArgumentError, DTypeError, GradNotSupportedError, OpfacadeError, ShapeError, UnsupportedError
from tests.compat.oracle import Scoring, attention, close

HEADS, KV_HEADS, DIM, CAPACITY, BATCH = 6, 2, 16, 24, 3
LENS = [5, 11, 0]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(11)


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def caches(rows=BATCH):
    return torch.randn(2, rows, CAPACITY, KV_HEADS, DIM).unbind(0)


def turned(x, cos, sin, positions, interleaved):
    """x [n, heads, dim] rotated by the angles of each row's position, in float64."""
    half = cos.shape[1]
    out = x.double().clone()
    for row, position in enumerate(positions):
        c, s = cos[position].double(), sin[position].double()
        first = torch.arange(half) * 2 if interleaved else torch.arange(half)
        second = first + 1 if interleaved else first + half
        a, b = x[row, :, first].double(), x[row, :, second].double()
        out[row, :, first], out[row, :, second] = a * c - b * s, b * c + a * s
    return out


FORMS = {
    "plain": ({}, {}),
    "causal": ({"causal": True}, {"causal": True}),
    "both windows": ({"window_size": (4, 1)}, {"left": 4, "right": 1}),
    "right window": ({"window_size": (-1, 1)}, {"right": 1}),
    "windows in a tensor": ({"window_size": torch.tensor([4, 1])}, {"left": 4, "right": 1}),
    "windows as tensors": ({"window_size": [torch.tensor(4), torch.tensor(1, dtype=torch.int32)]}, {"left": 4, "right": 1}),
    "cap": ({"softcap": 2.0, "causal": True}, {"cap": 2.0, "causal": True}),
    "scale and splits": ({"softmax_scale": 0.3, "num_splits": 2}, {"scale": 0.3}),
    "one split": ({"num_splits": 1, "causal": True}, {"causal": True}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("appends", [False, True])
def test_each_form(form, rows, appends):
    given, meant = FORMS[form]
    (k_cache, v_cache), q = caches(), torch.randn(BATCH, rows, HEADS, DIM)
    new = torch.randn(2, BATCH, rows, KV_HEADS, DIM).unbind(0) if appends else (None, None)
    before = k_cache.clone(), v_cache.clone()
    lens = i32(*LENS)
    out, lse = flash_attn_with_kvcache(q, k_cache, v_cache, *new, cache_seqlens=lens, return_softmax_lse=True, **given)
    assert lse.shape == (BATCH, HEADS, rows)
    assert lens.tolist() == LENS
    for b, length in enumerate(LENS):
        own = [cache[b].clone() for cache in before]
        for cache, rows_new, after in zip(own, new, (k_cache, v_cache), strict=True):
            if appends:
                cache[length : length + rows] = rows_new[b]
            assert torch.equal(after[b], cache)
        end = length + rows * appends
        o, natural = attention(q[b], own[0][:end], own[1][:end], Scoring(**meant))
        close(out[b], o)
        close(lse[b], natural.T)


@pytest.mark.parametrize("appends", [False, True])
def test_odd_heads_with_slopes_of_requests_in_16_bits(appends):
    """One request of the batch begins at an address that is not aligned to 16 bytes, and so do rows of a packed tensor."""
    dim, heads, rows = 59, 6, 3
    k_cache, v_cache = torch.randn(2, BATCH, CAPACITY, 1, dim, dtype=torch.float16).unbind(0)
    q, slopes = torch.randn(BATCH, rows, heads, dim, dtype=torch.float16), torch.rand(BATCH, heads)
    packed = torch.randn(BATCH * rows * 2 + 1, 1, dim, dtype=torch.float16)
    new = [packed[at : at + BATCH * rows].view(BATCH, rows, 1, dim) for at in (0, BATCH * rows + 1)]
    assert {x.data_ptr() % 16 != 0 for x in (q[1], new[1])} == {True}
    given = {"k": new[0], "v": new[1]} if appends else {}
    out = flash_attn_with_kvcache(q, k_cache, v_cache, **given, cache_seqlens=i32(*LENS), causal=True, alibi_slopes=slopes)
    for b, length in enumerate(LENS):
        end = length + rows * appends
        o, _ = attention(q[b], k_cache[b, :end], v_cache[b, :end], Scoring(causal=True, slopes=slopes[b]))
        torch.testing.assert_close(out[b].double(), o, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(
    "window", [torch.tensor([1.0, 2.0]), torch.tensor([True, False]), torch.tensor([1, 2, 3]), torch.tensor(3)]
)
def test_a_window_of_other_tensors_is_refused_by_name(window):
    (k_cache, v_cache), q = caches(), torch.randn(BATCH, 1, HEADS, DIM)
    with pytest.raises(ArgumentError, match=r"window_size expected"):
        flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=i32(*LENS), window_size=window)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("rotary_dim", "form"), [(16, "causal"), (8, "causal"), (16, "plain"), (8, "both windows")])
@pytest.mark.parametrize("again", [False, True])
def test_angles(interleaved, rotary_dim, form, again):
    given, meant = FORMS[form]
    rows = 3
    (k_cache, v_cache), q = caches(), torch.randn(BATCH, rows, HEADS, DIM)
    k, v = torch.randn(2, BATCH, rows, KV_HEADS, DIM).unbind(0)
    angle = torch.rand(CAPACITY, rotary_dim // 2) * 6
    cos, sin = angle.cos(), angle.sin()
    if again:  # angles that were used once, and then changed in place
        flash_attn_with_kvcache(q, *caches(), k, v, cos, sin, cache_seqlens=i32(*LENS), rotary_interleaved=interleaved)
        cos.copy_((angle * 2).cos())
        sin.copy_((angle * 2).sin())
    before = k_cache.clone(), v_cache.clone()
    out = flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cos, sin, cache_seqlens=i32(*LENS), rotary_interleaved=interleaved, **given
    )
    for b, length in enumerate(LENS):
        positions = range(length, length + rows)
        own_k = turned(k[b], cos, sin, positions, interleaved)
        close(k_cache[b, length : length + rows], own_k)
        own_q = turned(q[b], cos, sin, positions if form != "plain" else [length] * rows, interleaved)
        keys = torch.cat([before[0][b, :length].double(), own_k])
        values = torch.cat([before[1][b, :length], v[b]])
        torch.testing.assert_close(out[b].double(), attention(own_q, keys, values, Scoring(**meant))[0], rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("form", ["causal", "both windows", "cap"])
def test_padding_on_the_left_hides_its_keys(rows, form):
    given, meant = FORMS[form]
    (k_cache, v_cache), q = caches(), torch.randn(BATCH, rows, HEADS, DIM)
    lens, first = i32(7, 11, 9), i32(0, 4, 8)
    k_cache[1, :4] = torch.nan
    result = flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_seqlens=lens, cache_leftpad=first, return_softmax_lse=True, **given
    )
    for b in range(BATCH):
        end = int(lens[b])
        scoring = Scoring(**meant, first_key=int(first[b]))
        o, natural = attention(q[b], k_cache[b, :end].nan_to_num(0.0), v_cache[b, :end], scoring)
        close(result[0][b], o)
        close(result[1][b], natural.T)


@pytest.mark.parametrize("name", ["block_table", "page_table"])
@pytest.mark.parametrize("rows", [1, 3])
def test_pages_of_any_size(name, rows):
    page = 4
    k_cache, v_cache = torch.randn(2, 20, page, KV_HEADS, DIM).unbind(0)
    table = torch.randperm(20)[:18].view(BATCH, 6).to(torch.int32)
    q = torch.randn(BATCH, rows, HEADS, DIM)
    k, v = torch.randn(2, BATCH, rows, KV_HEADS, DIM).unbind(0)
    before = [cache[table.long()].flatten(1, 2) for cache in (k_cache, v_cache)]
    untouched = sorted(set(range(20)) - set(table.flatten().tolist()))
    rest = k_cache[untouched].clone()
    out = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=i32(*LENS), causal=True, **{name: table})
    for b, length in enumerate(LENS):
        keys, values = (torch.cat([own[b, :length], new[b]]) for own, new in zip(before, (k, v), strict=True))
        close(out[b], attention(q[b], keys, values, Scoring(causal=True))[0])
    assert torch.equal(k_cache[untouched], rest)


def test_rows_of_a_larger_cache():
    k_cache, v_cache = caches(rows=5)
    q, rows = torch.randn(BATCH, 2, HEADS, DIM), [4, 0, 3]
    k, v = torch.randn(2, BATCH, 2, KV_HEADS, DIM).unbind(0)
    other = k_cache[[1, 2]].clone()
    out = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=i32(*LENS), cache_batch_idx=i32(*rows), causal=True)
    for b, (row, length) in enumerate(zip(rows, LENS, strict=True)):
        assert torch.equal(k_cache[row, length : length + 2], k[b])
        end = length + 2
        close(out[b], attention(q[b], k_cache[row, :end], v_cache[row, :end], Scoring(causal=True))[0])
    assert torch.equal(k_cache[[1, 2]], other)


@pytest.mark.parametrize("lens", [6, None])
def test_a_length_of_all_requests(lens):
    (k_cache, v_cache), q = caches(), torch.randn(BATCH, 1, HEADS, DIM)
    out = flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lens)
    for b in range(BATCH):
        close(out[b], attention(q[b], k_cache[b, :lens], v_cache[b, :lens])[0])


@pytest.mark.parametrize("rows", [1, 3])
def test_slopes_of_each_request(rows):
    (k_cache, v_cache), q, slopes = caches(), torch.randn(BATCH, rows, HEADS, DIM), torch.rand(BATCH, HEADS)
    out, lse = flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_seqlens=i32(*LENS), causal=True, alibi_slopes=slopes, return_softmax_lse=True
    )
    for b, length in enumerate(LENS):
        scoring = Scoring(causal=True, slopes=slopes[b])
        o, natural = attention(q[b], k_cache[b, :length], v_cache[b, :length], scoring)
        close(out[b], o)
        close(lse[b], natural.T)


@pytest.mark.parametrize("heads", [1, KV_HEADS])
@pytest.mark.parametrize("turned", [False, True])
def test_rows_that_are_quantised_into_an_fp8_cache_are_divided_by_their_factors(heads, turned):
    """Quotients are fp8 numbers; angles of 0 rotate nothing."""
    factor = torch.tensor([0.25, 2.0])[:heads]
    k, v = torch.randint(-8, 9, (2, 2, 4, KV_HEADS, DIM)).float().mul(factor[:, None]).bfloat16().unbind(0)
    k_cache, v_cache = torch.zeros(2, 2, 6, KV_HEADS, DIM).to(torch.float8_e4m3fn).unbind(0)
    q, descale = torch.randn(2, 3, HEADS, DIM).bfloat16(), factor.expand(2, heads)
    angles = {"rotary_cos": torch.ones(9, 8), "rotary_sin": torch.zeros(9, 8)} if turned else {}
    out = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=0, k_descale=descale, v_descale=descale, **angles)
    for b in range(2):
        close(out[b], attention(q[b], k[b], v[b])[0])
        assert torch.equal(k_cache[b, :4].float() * factor[:, None], k[b].float())


def complete():
    k, v = torch.randn(2, BATCH, 2, KV_HEADS, DIM).unbind(0)
    given = dict(zip(("k_cache", "v_cache"), caches(), strict=True))
    return given | {"q": torch.randn(BATCH, 2, HEADS, DIM), "k": k, "v": v, "cache_seqlens": i32(*LENS), "causal": True}


REFUSED = [
    ({"qv": torch.ones(1)}, UnsupportedError, "qv"),
    ({"attention_chunk": 8}, UnsupportedError, "attention_chunk"),
    ({"cu_seqlens_q": i32(0, 2)}, UnsupportedError, "cu_seqlens_q"),
    ({"cu_seqlens_k_new": i32(0, 2)}, UnsupportedError, "cu_seqlens_k_new"),
    ({"rotary_seqlens": i32(0, 2)}, UnsupportedError, "rotary_seqlens"),
    ({"k_descale": torch.ones(BATCH, KV_HEADS)}, UnsupportedError, "k_descale"),
    ({"block_table": i32(0, 1, 2)[:, None], "cache_batch_idx": i32(0, 1, 2)}, UnsupportedError, "cache_batch_idx"),
    ({"block_table": i32(0, 1, 2)[:, None], "page_table": i32(2, 1, 0)[:, None]}, ArgumentError, "page_table"),
    ({"v": None}, ArgumentError, "v"),
    ({"k": None}, ArgumentError, "k"),
    ({"cache_seqlens": None}, ArgumentError, "cache_seqlens"),
    ({"rotary_cos": torch.ones(9, 8)}, ArgumentError, "rotary_sin"),
    ({"rotary_cos": torch.ones(9, 8), "rotary_sin": torch.ones(8, 8)}, ShapeError, "rotary_sin"),
    ({"k": None, "v": None, "rotary_cos": torch.ones(9, 8), "rotary_sin": torch.ones(9, 8)}, ArgumentError, "rotary_cos"),
    ({"v": torch.randn(BATCH, 3, KV_HEADS, DIM)}, ShapeError, "v"),
    ({"cache_leftpad": i32(0)}, ShapeError, "cache_leftpad"),
    ({"cache_leftpad": torch.tensor([0.5, 1.5, 0.0])}, DTypeError, "cache_leftpad"),
    ({"cache_leftpad": torch.tensor([2**32 + 1, 0, 0])}, DTypeError, "cache_leftpad"),
    ({"cache_seqlens": i32(0, 1)}, ShapeError, "block_table"),
    ({"cache_seqlens": torch.tensor(LENS)}, DTypeError, "cache_seqlens"),
    ({"q": torch.randn(BATCH, 2, HEADS, DIM, requires_grad=True)}, GradNotSupportedError, "q"),
    ({"q": torch.randn(BATCH, 2, HEADS, 8)}, ShapeError, "q"),
    ({"q": torch.randn(BATCH, 2, 5, DIM)}, OpfacadeError, "num_qo_heads"),
    ({"alibi_slopes": torch.rand(2, HEADS)}, ShapeError, "alibi_slopes"),
    ({"alibi_slopes": torch.rand(HEADS).cfloat()}, DTypeError, "alibi_slopes"),
    ({"s_aux": torch.rand(HEADS).cfloat()}, DTypeError, "s_aux"),
    ({"k_descale": torch.rand(1).cfloat()}, DTypeError, "k_descale"),
    ({"num_splits": -1}, ArgumentError, "num_splits"),
]


@pytest.mark.parametrize(("change", "error", "named"), REFUSED, ids=[",".join(change) for change, _, _ in REFUSED])
def test_nothing_is_written_when_it_refuses_by_name(change, error, named):
    given = complete()
    before = given["k_cache"].clone(), given["v_cache"].clone()
    with pytest.raises(error, match=rf"\b{named} expected"):
        flash_attn_with_kvcache(**(given | change))
    assert torch.equal(given["k_cache"], before[0])
    assert torch.equal(given["v_cache"], before[1])
