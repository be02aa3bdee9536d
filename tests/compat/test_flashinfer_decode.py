"""FlashInfer's decode wrappers against a dense oracle in float64: forms of the cache, scores, factors, graphs, refusals."""

import math
from functools import partial

import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade.errors import ArgumentError, DTypeError, PlanStateError, ShapeError, UnsupportedError
from opfacade.variant_examples import alibi_slopes
from tests.compat.oracle import Scoring, attention, close
from tests.compat.pages import paged

HEADS, KV_HEADS, DIM, PAGE = 6, 2, 16, 4
LENS = [9, 0, 4, 13]
LOG2E = math.log2(math.e)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)


def buffer(count=1 << 16):
    return torch.empty(count, dtype=torch.uint8)


def wrapper(layout="NHD", **kw):
    return flashinfer.BatchDecodeWithPagedKVCacheWrapper(buffer(), layout, **kw)


def query(rows=1, dtype=torch.float32):
    return torch.randn(len(LENS) * rows, HEADS, DIM, dtype=dtype)


def check(result, q, pages, scoring=None, rows=1):
    o, lse = result
    assert o.dtype == q.dtype
    for b, (k, v) in enumerate(pages.rows):
        own = slice(b * rows, (b + 1) * rows)
        want, natural = attention(q[own], k, v, scoring)
        close(o[own], want)
        close(lse[own], natural * LOG2E, torch.float32)


SIZES = (HEADS, KV_HEADS, DIM, PAGE)
F32 = {"q_data_type": torch.float32}
FORMS = {
    "plain": ({}, {}),
    "window": ({"window_left": 5}, {"left": 5}),
    "cap": ({"logits_soft_cap": 2.0}, {"cap": 2.0}),
    "scale": ({"sm_scale": 0.3}, {"scale": 0.3}),
    "alibi": ({"pos_encoding_mode": "ALIBI"}, {"slopes": torch.tensor(alibi_slopes(HEADS)), "from_row": True}),
    "alibi and cap": (
        {"pos_encoding_mode": "ALIBI", "logits_soft_cap": 2.0},
        {"slopes": torch.tensor(alibi_slopes(HEADS)), "from_row": True, "cap": 2.0},
    ),
    "fixed split": ({"fixed_split_size": 2}, {}),
    "no split": ({"disable_split_kv": True}, {}),
    "hints": ({"non_blocking": False, "seq_lens": torch.zeros(1), "data_type": torch.float32}, {}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_each_form_of_scores(form, layout):
    given, meant = FORMS[form]
    pages, q, w = paged(LENS, PAGE, KV_HEADS, DIM, layout), query(), wrapper(layout)
    w.plan(*pages.table, *SIZES, **F32, **given)
    check(w.run(q, (pages.k, pages.v), return_lse=True), q, pages, Scoring(**meant))


@pytest.mark.parametrize("cache", ["pair", "one tensor"])
@pytest.mark.parametrize("call", ["run", "run_return_lse", "forward", "forward_return_lse"])
def test_calls_and_caches(cache, call):
    pages, q, w = paged(LENS, PAGE, KV_HEADS, DIM), query(), wrapper()
    w.begin_forward(*pages.table, *SIZES, **F32)
    given = (pages.k, pages.v) if cache == "pair" else torch.stack([pages.k, pages.v], 1)
    result = getattr(w, call)(q, given)
    assert isinstance(result, tuple) == call.endswith("return_lse")
    w.end_forward()
    o, _ = result if call.endswith("return_lse") else (result, None)
    want = w.run(q, (pages.k, pages.v), return_lse=True)
    assert torch.equal(o, want[0])
    check(want, q, pages)


def test_forward_says_again_what_plan_was_told():
    pages, q, w = paged(LENS, PAGE, KV_HEADS, DIM), query(), wrapper()
    w.plan(*pages.table, *SIZES, **F32)
    result = w.forward_return_lse(q, (pages.k, pages.v), window_left=3, logits_soft_cap=2.0, sm_scale=0.4)
    check(result, q, pages, Scoring(scale=0.4, left=3, cap=2.0))


def test_pages_of_one_token_without_their_axis():
    pages, q, w = paged(LENS, 1, KV_HEADS, DIM), query(), wrapper()
    w.plan(*pages.table, HEADS, KV_HEADS, DIM, 1, **F32)
    check(w.run(q, (pages.k[:, 0], pages.v[:, 0]), return_lse=True), q, pages)


def test_index_tensors_may_be_longer_than_the_batch():
    pages, q, w = paged(LENS, PAGE, KV_HEADS, DIM), query(), wrapper()
    longer = torch.cat([pages.indptr, pages.indptr[-1:] + 7])
    w.plan(longer, pages.indices, pages.last, *SIZES, **F32)
    check(w.run(q, (pages.k, pages.v), return_lse=True), q, pages)


@pytest.mark.parametrize("rows", [2, 3])
def test_rows_of_a_request_are_causal(rows):
    lens = [9, 3, 4, 13]
    pages, q, w = paged(lens, PAGE, KV_HEADS, DIM), torch.randn(4 * rows, HEADS, DIM), wrapper()
    w.plan(*pages.table, *SIZES, **F32, q_len_per_req=rows)
    check(w.run(q, (pages.k, pages.v), return_lse=True), q, pages, Scoring(causal=True), rows)


def test_sinks_and_outputs_that_are_given():
    pages, q, w, sinks = paged(LENS, PAGE, KV_HEADS, DIM), query(), wrapper(), torch.randn(HEADS)
    w.plan(*pages.table, *SIZES, **F32)
    out, lse = torch.full_like(q, torch.nan), torch.full((len(LENS), HEADS), torch.nan)
    result = w.run(q, (pages.k, pages.v), out=out, lse=lse, return_lse=True, sinks=sinks, window_left=6)
    assert result[0] is out
    assert result[1] is lse
    check(result, q, pages, Scoring(sinks=sinks, left=6))
    lse.fill_(torch.nan)
    assert w.run(q, (pages.k, pages.v), lse=lse, sinks=sinks, window_left=6) is not out
    check((out, lse), q, pages, Scoring(sinks=sinks, left=6))


FACTORS = [0.5, torch.tensor([0.5]), torch.tensor([0.5, 2.0])]


@pytest.mark.parametrize("k_scale", FACTORS, ids=["number", "one", "each"])
@pytest.mark.parametrize("v_scale", FACTORS, ids=["number", "one", "each"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_factors_are_numbers_or_tensors(k_scale, v_scale, dtype):
    pages, q, w = paged(LENS, PAGE, KV_HEADS, DIM, dtype=dtype), query(), wrapper()
    w.plan(*pages.table, *SIZES, **F32, kv_data_type=dtype)
    result = w.run(q, (pages.k, pages.v), k_scale=k_scale, v_scale=v_scale, q_scale=1.5, return_lse=True)
    wide = torch.as_tensor(k_scale).reshape(-1, 1) * 1.5, torch.as_tensor(v_scale).reshape(-1, 1)
    pages.rows = [(k.float() * wide[0], v.float() * wide[1]) for k, v in pages.rows]
    check(result, q, pages)


def test_a_factor_of_each_query_head():
    pages, q, w, factor = paged(LENS, PAGE, KV_HEADS, DIM), query(), wrapper(), torch.rand(HEADS) + 0.5
    w.plan(*pages.table, *SIZES, **F32, logits_soft_cap=3.0)
    result = w.run(q, (pages.k, pages.v), q_scale=factor, return_lse=True)
    check(result, q * factor[:, None], pages, Scoring(cap=3.0))


def test_the_buffers_of_a_graph_are_read_and_the_plan_stays_the_same():
    count, capacity = len(LENS), 40
    buffers = torch.zeros(count + 1, dtype=torch.int32), torch.zeros(capacity, dtype=torch.int32)
    last = torch.ones(count, dtype=torch.int32)
    w = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(buffer(), buffers[0], buffers[1], last)
    assert w.is_cuda_graph_enabled
    for lens in (LENS, [1, 2, 3, 4]):
        pages, q = paged(lens, PAGE, KV_HEADS, DIM), query()
        w.plan(*pages.table, *SIZES, **F32)
        assert torch.equal(buffers[0], pages.indptr)
        assert torch.equal(last, pages.last)
        check(w.run(q, (pages.k, pages.v), return_lse=True), q, pages)
    other = paged([4, 5, 1, 2], PAGE, KV_HEADS, DIM)  # the state at a replay: other lengths, and no plan()
    for own, new in zip((*buffers, last), other.table, strict=True):
        own[: new.shape[0]].copy_(new)
    check(w.run(q, (other.k, other.v), return_lse=True), q, other)
    with pytest.raises(ShapeError, match="batch_size expected 4, the size of the graph's buffers, got 3"):
        w.plan(pages.indptr[:4], pages.indices, pages.last[:3], *SIZES, **F32)
    with pytest.raises(ShapeError, match="indices expected at most 40"):
        w.plan(pages.indptr, torch.zeros(41, dtype=torch.int32), pages.last, *SIZES, **F32)


def test_a_graph_needs_its_buffers():
    with pytest.raises(ArgumentError, match="paged_kv_indptr_buffer expected a tensor"):
        wrapper(use_cuda_graph=True)


def test_fast_plan_is_plan():
    pages, q, w = paged(LENS, PAGE, KV_HEADS, DIM), query(), wrapper()
    w.plan = partial(flashinfer.fast_decode_plan, w)  # as serving engines bind it
    w.plan(*pages.table, *SIZES, "NONE", 5, q_data_type=torch.float32)
    check(w.run(q, (pages.k, pages.v), return_lse=True), q, pages, Scoring(left=5))


PLAN_REFUSED = [
    ({"pos_encoding_mode": "ROPE_LLAMA"}, UnsupportedError, "pos_encoding_mode"),
    ({"unheard_of": 1}, UnsupportedError, "unheard_of"),
    ({"q_data_type": "float17"}, ArgumentError, "q_data_type"),
    ({"fixed_split_size": 0}, ArgumentError, "fixed_split_size"),
    ({"q_len_per_req": 2, "window_right": 3}, ArgumentError, "window_right"),
    ({"q_len_per_req": -1}, ArgumentError, "q_len_per_req"),
]


@pytest.mark.parametrize(("change", "error", "named"), PLAN_REFUSED, ids=[named for _, _, named in PLAN_REFUSED])
def test_plan_refuses_by_name(change, error, named):
    pages = paged(LENS, PAGE, KV_HEADS, DIM)
    with pytest.raises(error, match=rf"\b{named} expected"):
        wrapper().plan(*pages.table, *SIZES, **change)


def test_index_tensors_of_64_bits_are_refused():
    pages = paged(LENS, PAGE, KV_HEADS, DIM)
    with pytest.raises(DTypeError, match=r"indptr expected torch.int32, got torch.int64"):
        wrapper().plan(pages.indptr.long(), pages.indices, pages.last, *SIZES)


RUN_REFUSED = [
    ({"kv_cache_sf": torch.ones(1)}, UnsupportedError, "kv_cache_sf"),
    ({"skip_softmax_threshold_scale_factor": 0.1}, UnsupportedError, "skip_softmax_threshold_scale_factor"),
    ({"q": torch.randn(4, HEADS, DIM, dtype=torch.float16)}, DTypeError, "q"),
    ({"q": torch.randn(5, HEADS, DIM)}, ShapeError, "q"),
    ({"q": torch.randn(4, HEADS, 8)}, ShapeError, "q"),
    ({"q": torch.randn(4, 3, DIM)}, ShapeError, "q"),
    ({"k_scale": torch.ones(4)}, ShapeError, "k_scale"),
    ({"lse": torch.zeros(3, HEADS), "return_lse": True}, ShapeError, "lse"),
    ({"paged_kv_cache": torch.zeros(4, 3, PAGE, KV_HEADS, DIM)}, ShapeError, "paged_kv_cache"),
    ({"paged_kv_cache": torch.zeros(4, 2, PAGE + 1, KV_HEADS, DIM)}, ShapeError, "paged_kv_cache"),
    ({"paged_kv_cache": torch.zeros(4, 2, PAGE, KV_HEADS, DIM, dtype=torch.float16)}, DTypeError, "paged_kv_cache"),
    ({"paged_kv_cache": torch.zeros(4, 2, PAGE, KV_HEADS, DIM, dtype=torch.uint8)}, UnsupportedError, "paged_kv_cache"),
]


@pytest.mark.parametrize(("change", "error", "named"), RUN_REFUSED)
def test_run_refuses_by_name_and_writes_nothing(change, error, named):
    pages, w = paged(LENS, PAGE, KV_HEADS, DIM), wrapper()
    w.plan(*pages.table, *SIZES, **F32)
    out = torch.full((4, HEADS, DIM), torch.nan)
    with pytest.raises(error, match=rf"\b{named} expected"):
        w.run(**({"q": query(), "paged_kv_cache": (pages.k, pages.v), "out": out} | change))
    assert bool(out.isnan().all())


def test_positional_arguments_of_ones_own_kernel_are_refused():
    pages, w = paged(LENS, PAGE, KV_HEADS, DIM), wrapper()
    w.plan(*pages.table, *SIZES, **F32)
    with pytest.raises(UnsupportedError, match="args expected no further"):
        w.run(query(), (pages.k, pages.v), torch.ones(1))


def test_run_before_plan_is_refused():
    with pytest.raises(PlanStateError, match=r"BatchDecodeWithPagedKVCacheWrapper.call: plan expected .*OPF-C003"):
        wrapper().run(query(), torch.zeros(4, 2, PAGE, KV_HEADS, DIM))


def test_wrong_arguments_of_a_wrapper_are_refused():
    with pytest.raises(ArgumentError, match="kv_layout expected"):
        wrapper("DHN")
    with pytest.raises(UnsupportedError, match="jit_args expected"):
        wrapper(jit_args=["source"])


def inside(part, whole):
    start = part.data_ptr() - whole.data_ptr()
    return (
        part.dtype == torch.uint8 and start in range(256) and part.nbytes == whole.nbytes - start and not part.data_ptr() % 256
    )


def test_a_larger_workspace_is_the_wrappers_own_and_a_smaller_one_serves():
    w = wrapper()

    class Plan:
        workspace_size = 1 << 15

    assert inside(w._workspace(Plan), w._float_workspace_buffer)
    Plan.workspace_size = (1 << 16) + 1
    own = w._workspace(Plan)
    assert own.nbytes == 1 << 17
    assert w._workspace(Plan) is own
    w.reset_workspace_buffer(buffer(1 << 18), buffer(8))
    assert inside(w._workspace(Plan), w._float_workspace_buffer)
    Plan.workspace_size = 0
    assert w._workspace(Plan) is None


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("count", [0, 1, 37])
@pytest.mark.parametrize("form", ["plain", "window", "cap", "alibi"])
def test_a_single_request(layout, count, form):
    given, meant = FORMS[form]
    q, k, v = torch.randn(HEADS, DIM), *torch.randn(2, count, KV_HEADS, DIM).unbind(0)
    rows = (k, v) if layout == "NHD" else (k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous())
    o, lse = flashinfer.single_decode_with_kv_cache(q, *rows, kv_layout=layout, return_lse=True, **given)
    want, natural = attention(q[None], k, v, Scoring(**meant))
    close(o, want[0])
    close(lse, natural[0] * LOG2E, torch.float32)
    assert torch.equal(o, flashinfer.single_decode_with_kv_cache(q, *rows, kv_layout=layout, **given))
