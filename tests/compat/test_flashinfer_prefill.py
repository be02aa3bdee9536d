"""FlashInfer's prefill wrappers, paged and ragged, and its function for one request, against a dense oracle in float64."""

import math

import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade.errors import ArgumentError, DTypeError, OpfacadeError, PlanStateError, ShapeError, UnsupportedError
from opfacade.variant_examples import alibi_slopes
from tests.compat.oracle import Scoring, attention, close
from tests.compat.pages import indptr, paged

HEADS, KV_HEADS, DIM, PAGE = 6, 2, 16, 4
ROWS, LENS = [3, 0, 4, 1], [9, 2, 4, 13]
LOG2E = math.log2(math.e)
SIZES = (HEADS, KV_HEADS, DIM)
F32 = {"q_data_type": torch.float32}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(5)


def buffer():
    return torch.empty(1 << 16, dtype=torch.uint8)


class OverPages:
    """Both wrappers behind one interface: planned with tables, run on q."""

    def __init__(self, layout="NHD", dtype=torch.float32, **kw):
        self.wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(buffer(), layout, **kw)
        self.pages = paged(LENS, PAGE, KV_HEADS, DIM, layout, dtype)
        self.rows = self.pages.rows

    def plan(self, **given):
        self.wrapper.plan(indptr(*ROWS), *self.pages.table, *SIZES, PAGE, **(F32 | given))
        return self

    def run(self, q, *args, call="run", **given):
        return getattr(self.wrapper, call)(q, (self.pages.k, self.pages.v), *args, **given)


class Ragged:
    def __init__(self, layout="NHD", dtype=torch.float32, **kw):
        self.wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(buffer(), layout, **kw)
        self.k, self.v = torch.randn(2, sum(LENS), KV_HEADS, DIM).to(dtype).unbind(0)
        self.rows = list(zip(self.k.split(LENS), self.v.split(LENS), strict=True))

    def plan(self, **given):
        self.wrapper.plan(indptr(*ROWS), indptr(*LENS), *SIZES, **(F32 | given))
        return self

    def run(self, q, *args, call="run", **given):
        return getattr(self.wrapper, call)(q, self.k, self.v, *args, **given)


BOTH = pytest.mark.parametrize("kind", [OverPages, Ragged])


def query(dtype=torch.float32):
    return torch.randn(sum(ROWS), HEADS, DIM).to(dtype)


def check(result, q, rows, scorings=None):
    o, lse = result
    at = 0
    for b, (k, v) in enumerate(rows):
        own = slice(at, at + ROWS[b])
        at += ROWS[b]
        want, natural = attention(q[own], k, v, scorings[b] if isinstance(scorings, list) else scorings)
        close(o[own], want)
        close(lse[own], natural * LOG2E, torch.float32)


FORMS = {
    "plain": ({}, {}),
    "causal": ({"causal": True}, {"causal": True}),
    "window": ({"causal": True, "window_left": 2}, {"causal": True, "left": 2}),
    "cap and scale": ({"logits_soft_cap": 2.0, "sm_scale": 0.3}, {"cap": 2.0, "scale": 0.3}),
    "alibi": ({"pos_encoding_mode": "ALIBI"}, {"slopes": torch.tensor(alibi_slopes(HEADS)), "from_row": True}),
    "split": ({"fixed_split_size": 2, "causal": True}, {"causal": True}),
    "no split": ({"disable_split_kv": True}, {}),
    "hints": ({"use_fp16_qk_reduction": True, "max_sequence_kv": 13, "uniform_q_len": 1}, {}),
}


@BOTH
@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_scores(kind, form):
    given, meant = FORMS[form]
    w, q = kind().plan(**given), query()
    check(w.run(q, return_lse=True), q, w.rows, Scoring(**meant))


@BOTH
@pytest.mark.parametrize("call", ["run", "run_return_lse", "forward", "forward_return_lse"])
def test_calls(kind, call):
    w, q = kind(), query()
    w.plan(causal=True)
    given = {"causal": True} if call.startswith("forward") else {}
    result = w.run(q, call=call, **given)
    w.wrapper.end_forward()
    want = w.run(q, return_lse=True)
    assert isinstance(result, tuple) == call.endswith("return_lse")
    assert torch.equal(result[0] if isinstance(result, tuple) else result, want[0])
    check(want, q, w.rows, Scoring(causal=True))


@BOTH
def test_forward_says_again_what_plan_was_told(kind):
    w, q = kind().plan(), query()
    told = {"causal": True, "window_left": 3, "logits_soft_cap": 2.0, "sm_scale": 0.4}
    check(w.run(q, call="forward_return_lse", **told), q, w.rows, Scoring(0.4, True, 3, cap=2.0))


def test_a_cache_of_heads_before_tokens():
    w, q = OverPages("HND").plan(causal=True), query()
    check(w.run(q, return_lse=True), q, w.rows, Scoring(causal=True))


def masks():
    return [torch.rand(rows, keys) < 0.6 for rows, keys in zip(ROWS, LENS, strict=True)]


def packed(parts):
    bits = [flashinfer.packbits(part.reshape(-1), bitorder="little") for part in parts]
    return torch.cat(bits)


@BOTH
@pytest.mark.parametrize("form", ["booleans", "bits"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_mask_stands_in_place_of_the_causal_one(kind, form, causal):
    parts, q = masks(), query()
    given = {"custom_mask": torch.cat([part.reshape(-1) for part in parts])} if form == "booleans" else {}
    given |= {"packed_custom_mask": packed(parts)} if form == "bits" else {}
    w = kind().plan(causal=causal, window_left=5, **given)
    check(w.run(q, return_lse=True), q, w.rows, [Scoring(mask=part, left=5) for part in parts])


@BOTH
@pytest.mark.parametrize("base", ["log2", "ln"])
@pytest.mark.parametrize("layout", ["NH", "HN"])
@pytest.mark.parametrize("given", [False, True])
def test_bases_and_layouts_of_lse(kind, base, layout, given):
    w, q = kind().plan(), query()
    shape = (q.shape[0], HEADS) if layout == "NH" else (HEADS, q.shape[0])
    own = torch.full(shape, torch.nan) if given else None
    o, lse = w.run(q, return_lse=True, lse_base=base, lse_layout=layout, lse=own)
    assert lse.shape == shape
    assert lse.is_contiguous()
    assert not given or lse is own
    if given:  # it is written although it is not returned
        own.fill_(torch.nan)
        assert torch.equal(w.run(q, lse_base=base, lse_layout=layout, lse=own), o)
    natural = lse if layout == "NH" else lse.T
    check((o, natural * (1.0 if base == "log2" else LOG2E)), q, w.rows)


@BOTH
def test_an_output_that_is_given_and_sinks(kind):
    w, q, sinks = kind().plan(causal=True), query(), torch.randn(HEADS)
    out = torch.full_like(q, torch.nan)
    result = w.run(q, out=out, sinks=sinks, return_lse=True)
    assert result[0] is out
    check(result, q, w.rows, Scoring(causal=True, sinks=sinks))


FP8 = torch.float8_e4m3fn


@BOTH
@pytest.mark.parametrize("factors", ["numbers", "one", "each", "positional"])
def test_fp8_of_all_with_factors(kind, factors):
    w, q = kind(dtype=FP8).plan(q_data_type=FP8, o_data_type=torch.float32, causal=True), query(FP8)
    each = torch.rand(HEADS) + 0.5, torch.rand(KV_HEADS) + 0.5, torch.rand(KV_HEADS) + 0.5
    given = {"numbers": (0.5, 2.0, 0.25), "one": tuple(x[:1] for x in each)}.get(factors, each)
    args = given if factors == "positional" else ()
    named = {} if args else dict(zip(("q_scale", "k_scale", "v_scale"), given, strict=True))
    result = w.run(q, *args, return_lse=True, **named)
    q_scale, k_scale, v_scale = (torch.as_tensor(x).reshape(-1, 1) for x in given)
    rows = [(k.float() * k_scale, v.float() * v_scale) for k, v in w.rows]
    check(result, q.float() * q_scale, rows, Scoring(causal=True))


def test_wide_q_and_an_fp8_cache():
    w, q = OverPages(dtype=FP8).plan(kv_data_type=FP8), query()
    check(w.run(q, k_scale=0.5, return_lse=True), q, [(k.float() * 0.5, v.float()) for k, v in w.rows])


def test_an_output_of_fp8_is_what_fp8_without_another_dtype_means():
    w, q = Ragged(dtype=FP8).plan(q_data_type=FP8), query(FP8)
    assert w.run(q, v_scale=0.5).dtype == FP8


def test_values_of_another_width():
    w = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(buffer())
    q, k, v = query(), torch.randn(sum(LENS), KV_HEADS, DIM), torch.randn(sum(LENS), KV_HEADS, 24)
    w.plan(indptr(*ROWS), indptr(*LENS), *SIZES, 24, causal=True, **F32)
    rows = list(zip(k.split(LENS), v.split(LENS), strict=True))
    check(w.run(q, k, v, return_lse=True), q, rows, Scoring(causal=True))


@BOTH
def test_the_buffers_of_a_graph_are_read(kind):
    count = len(ROWS)
    starts = [torch.zeros(count + 1, dtype=torch.int32) for _ in range(2)]
    bits, mask_starts = torch.zeros(64, dtype=torch.uint8), torch.zeros(count + 1, dtype=torch.int32)
    own = {"custom_mask_buf": bits, "mask_indptr_buf": mask_starts, "use_cuda_graph": True, "qo_indptr_buf": starts[0]}
    if kind is Ragged:
        own["kv_indptr_buf"] = starts[1]
    else:
        own |= {"paged_kv_indptr_buf": starts[1], "paged_kv_indices_buf": torch.zeros(32, dtype=torch.int32)}
        own["paged_kv_last_page_len_buf"] = torch.ones(count, dtype=torch.int32)
    w, q, parts = kind(**own), query(), masks()
    w.plan(custom_mask=torch.cat([part.reshape(-1) for part in parts]))
    assert starts[0].tolist() == indptr(*ROWS).tolist()
    check(w.run(q, return_lse=True), q, w.rows, [Scoring(mask=part) for part in parts])
    bits.fill_(0xFF)
    check(w.run(q, return_lse=True), q, w.rows)
    other = (indptr(1, 2), *SIZES) if kind is Ragged else (*w.pages.table, *SIZES, PAGE)
    with pytest.raises(ShapeError, match="batch_size expected 4"):
        w.wrapper.plan(indptr(1, 2), *other)


PLAN_REFUSED = [
    ({"pos_encoding_mode": "ROPE_LLAMA"}, UnsupportedError, "pos_encoding_mode"),
    ({"prefix_len_ptr": torch.ones(1)}, UnsupportedError, "prefix_len_ptr"),
    ({"token_pos_in_items_ptr": torch.ones(1)}, UnsupportedError, "token_pos_in_items_ptr"),
    ({"max_item_len_ptr": torch.ones(1)}, UnsupportedError, "max_item_len_ptr"),
    ({"q_data_type": "float17"}, ArgumentError, "q_data_type"),
    ({"packed_custom_mask": torch.ones(2, 2, dtype=torch.uint8)}, ShapeError, "packed_custom_mask"),
]


@BOTH
@pytest.mark.parametrize(("change", "error", "named"), PLAN_REFUSED, ids=[named for _, _, named in PLAN_REFUSED])
def test_plan_refuses_by_name(kind, change, error, named):
    with pytest.raises(error, match=rf"\b{named} expected"):
        kind().plan(**change)


def test_what_one_of_them_lacks_is_refused():
    with pytest.raises(UnsupportedError, match="head_dim_vo expected 16"):
        OverPages().plan(head_dim_vo=8)
    with pytest.raises(UnsupportedError, match="v_indptr expected"):
        Ragged().plan(v_indptr=indptr(1))
    with pytest.raises(DTypeError, match=r"qo_indptr expected torch.int32"):
        Ragged().wrapper.plan(indptr(*ROWS).long(), indptr(*LENS), *SIZES)


RUN_REFUSED = [
    ({"kv_cache_sf": torch.ones(1)}, UnsupportedError, "kv_cache_sf"),
    ({"q": torch.randn(sum(ROWS), HEADS, DIM, dtype=torch.float16)}, DTypeError, "q"),
    ({"q": torch.randn(sum(ROWS), HEADS, 8)}, ShapeError, "q"),
    ({"lse_base": "log10"}, ArgumentError, "lse_base"),
    ({"lse_layout": "HNH"}, ArgumentError, "lse_layout"),
    ({"v_scale": torch.ones(5)}, ShapeError, "v_scale"),
]


@BOTH
@pytest.mark.parametrize(("change", "error", "named"), RUN_REFUSED)
def test_run_refuses_by_name_and_writes_nothing(kind, change, error, named):
    w, out = kind().plan(), torch.full((sum(ROWS), HEADS, DIM), torch.nan)
    with pytest.raises(error, match=rf"\b{named} expected"):
        w.run(**({"q": query(), "out": out} | change))
    assert bool(out.isnan().all())


@BOTH
def test_positional_arguments_and_runs_before_plan_are_refused(kind):
    with pytest.raises(UnsupportedError, match="args expected no further"):
        kind().plan().run(query(), torch.ones(1))
    with pytest.raises(PlanStateError, match="plan expected"):
        kind().run(query())
    with pytest.raises(UnsupportedError, match="jit_args expected"):
        kind(jit_args=["source"])


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("form", [name for name in FORMS if "split" not in name and name != "hints"])
def test_one_request(layout, form):
    given, meant = FORMS[form]
    q, (k, v) = torch.randn(5, HEADS, DIM), torch.randn(2, 9, KV_HEADS, DIM).unbind(0)
    own = (k, v) if layout == "NHD" else (k.transpose(0, 1), v.transpose(0, 1))
    o, lse = flashinfer.single_prefill_with_kv_cache(q, *own, kv_layout=layout, return_lse=True, **given)
    want, natural = attention(q, k, v, Scoring(**meant))
    close(o, want)
    close(lse, natural * LOG2E)
    again = flashinfer.single_prefill_with_kv_cache_return_lse(q, *own, kv_layout=layout, **given)
    assert torch.equal(again[0], o)
    assert torch.equal(flashinfer.single_prefill_with_kv_cache(q, *own, kv_layout=layout, **given), o)


@pytest.mark.parametrize("form", ["booleans", "bits"])
def test_one_request_with_a_mask(form):
    q, (k, v), mask = torch.randn(5, HEADS, DIM), torch.randn(2, 9, KV_HEADS, DIM).unbind(0), torch.rand(5, 9) < 0.6
    given = {"custom_mask": mask} if form == "booleans" else {"packed_custom_mask": packed([mask])}
    o = flashinfer.single_prefill_with_kv_cache(q, k, v, causal=True, **given)
    close(o, attention(q, k, v, Scoring(mask=mask))[0])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kv_cache_sf": torch.ones(1)}, "kv_cache_sf"),
        ({"custom_mask": torch.ones(4, 9)}, "custom_mask"),
        ({"q": torch.ones(4, 9)}, "q"),
        ({"k": None}, "k"),
        ({"scale_k": torch.ones(5)}, "k_scale"),
        ({"pos_encoding_mode": "ROPE_LLAMA"}, "pos_encoding_mode"),
    ],
)
def test_one_request_refuses_by_name(change, named):
    k, v = torch.randn(2, 9, KV_HEADS, DIM).unbind(0)
    with pytest.raises(OpfacadeError, match=rf"\b{named} expected"):
        flashinfer.single_prefill_with_kv_cache(**({"q": torch.randn(5, HEADS, DIM), "k": k, "v": v} | change))
