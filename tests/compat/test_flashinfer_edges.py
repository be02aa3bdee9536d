"""Calls of FlashInfer's functions whose tensors disagree with each other: refused, or without effect on other memory."""

import re
from types import SimpleNamespace

import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade.compat.attending import Call
from opfacade.errors import ArgumentError, DTypeError, IndexDataError, LayoutError, ShapeError, UnsupportedError
from opfacade.validation.rules import index_error
from tests.compat.pages import indptr, paged

HEADS, KV_HEADS, DIM, PAGE = 4, 2, 16, 4
LATENT, ROPE = 32, 8


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)


def indices(*values):
    return torch.tensor(values, dtype=torch.int32)


def buffer():
    return torch.empty(1 << 16, dtype=torch.uint8)


# Masks.

Q, K, V = torch.randn(3, HEADS, DIM), torch.randn(5, KV_HEADS, DIM), torch.randn(5, KV_HEADS, DIM)
SEEN = torch.tensor([[1, 0, 1, 0, 0], [1, 1, 0, 0, 1], [0, 0, 0, 1, 1]]).bool()
ADDITIVE = torch.zeros(3, 5).masked_fill(~SEEN, -1e9)
NO_MASKS = [ADDITIVE, ADDITIVE.half(), ADDITIVE.to(torch.float8_e5m2), ADDITIVE.to(torch.complex64), SEEN.to_sparse(), "x", [1]]


def one(mask, **given):
    return flashinfer.single_prefill_with_kv_cache(Q, K, V, custom_mask=mask, **given)


def over_pages(q_lens=(2, 1), lens=(9, 5), **given):
    """A wrapper for two requests with 9 + 9 + 5 = 23 entries of a mask."""
    pages = paged(lens, PAGE, KV_HEADS, DIM)
    w = flashinfer.BatchPrefillWithPagedKVCacheWrapper(buffer())
    w.plan(indptr(*q_lens), *pages.table, HEADS, KV_HEADS, DIM, PAGE, q_data_type=torch.float32, **given)
    return w.run(torch.ones(sum(q_lens), HEADS, DIM), (pages.k, pages.v))


def ragged(q_lens=(2, 1), lens=(9, 5), **given):
    w = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(buffer())
    w.plan(indptr(*q_lens), indptr(*lens), HEADS, KV_HEADS, DIM, q_data_type=torch.float32, **given)
    return w.run(torch.ones(sum(q_lens), HEADS, DIM), *torch.randn(2, sum(lens), KV_HEADS, DIM).unbind(0))


@pytest.mark.parametrize("mask", NO_MASKS, ids=lambda m: str(getattr(m, "dtype", type(m).__name__)))
def test_a_mask_has_truths(mask):
    """An additive mask is nonzero where it hides a key: read as booleans, it would be the opposite mask."""
    for call in (one, lambda m: over_pages(custom_mask=m), lambda m: ragged(custom_mask=m)):
        with pytest.raises(ArgumentError, match=r"custom_mask expected"):
            call(mask)
    with pytest.raises(DTypeError, match="An additive mask is none of entries"):
        one(ADDITIVE)


def test_integers_are_truths():
    want = one(SEEN)
    for mask in (SEEN.int(), 256 * SEEN.int(), SEEN.byte() * 3, SEEN.long().reshape(-1), SEEN.T.contiguous().T):
        assert torch.equal(one(mask), want)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5, 1), (1, 15), (14,), (16,)])
def test_a_mask_of_one_request_has_its_shape(shape):
    with pytest.raises(ShapeError, match=r"custom_mask expected \[3, 5\] or \[15\]"):
        one(torch.ones(shape).bool())
    with pytest.raises(ShapeError, match=r"packed_custom_mask expected \[2\]"):
        one(None, packed_custom_mask=torch.ones(1, dtype=torch.uint8))


@pytest.mark.parametrize("call", [over_pages, ragged])
def test_a_mask_of_a_batch_has_the_entries_of_its_requests(call):
    for count in (22, 24, 73):
        with pytest.raises(ShapeError, match=r"custom_mask expected 23 entries"):
            call(custom_mask=torch.ones(count).bool())
    call(custom_mask=torch.ones(23).bool())
    call(packed_custom_mask=torch.ones(4, dtype=torch.uint8))  # 18 entries and 5: 3 bytes and 1
    with pytest.raises(ShapeError, match=r"packed_custom_mask expected 4 bytes or more"):
        call(packed_custom_mask=torch.ones(3, dtype=torch.uint8))
    with pytest.raises(DTypeError, match=r"packed_custom_mask expected torch.uint8"):
        call(packed_custom_mask=torch.ones(4))


@pytest.mark.parametrize("call", [over_pages, ragged])
def test_a_mask_of_several_dimensions_is_not_transposed(call):
    equal = {"q_lens": (2, 2), "lens": (5, 5)}
    for shape in ((2, 2, 5), (4, 5), (2, 10), (1, 20)):
        call(**equal, custom_mask=torch.ones(shape).bool())
    for shape in ((2, 5, 2), (5, 4)):
        with pytest.raises(ShapeError, match=r"custom_mask expected keys in the last dimension"):
            call(**equal, custom_mask=torch.ones(shape).bool())


def masked_graph(count):
    """A wrapper with a graph for two requests and buffers for a mask of `count` bytes."""
    own = [torch.zeros(n, dtype=torch.int32) for n in (3, 3)]
    bits, starts = torch.full((count,), 7, dtype=torch.uint8), torch.zeros(3, dtype=torch.int32)
    w = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(
        buffer(), use_cuda_graph=True, qo_indptr_buf=own[0], kv_indptr_buf=own[1], custom_mask_buf=bits, mask_indptr_buf=starts
    )
    return w, (*own, bits, starts)


def test_a_buffer_of_a_mask_is_large_enough():
    told = (HEADS, KV_HEADS, DIM)
    mask = torch.ones(23).bool()
    w, own = masked_graph(3)
    with pytest.raises(ShapeError, match=r"custom_mask_buf expected 4 bytes or more, got \[3\]"):
        w.plan(indptr(2, 1), indptr(9, 5), *told, custom_mask=mask, q_data_type=torch.float32)
    assert [x.unique().tolist() for x in own] == [[0], [0], [7], [0]]
    w, own = masked_graph(4)
    w.plan(indptr(2, 1), indptr(9, 5), *told, custom_mask=mask, q_data_type=torch.float32)
    assert own[3].tolist() == [0, 3, 4]
    assert own[2].tolist() == [255, 255, 3, 31]


# Appends.

TABLE = {"kv_indices": indices(0, 4, 5), "kv_indptr": indices(0, 2, 3), "kv_last_page_len": indices(1, 1)}


def written(request, position, **change):
    """(page, slot): value of the slots that an append of rows 1, 2, 3 wrote. Request 0 has pages 0 and 4, request 1 page 5."""
    cache, latent = torch.zeros(6, 2, PAGE, KV_HEADS, DIM), torch.zeros(6, PAGE, LATENT)
    rows = torch.arange(1.0, 4)
    key = rows[:, None, None].expand(3, KV_HEADS, DIM).contiguous()
    where, table = {"batch_indices": request, "positions": position}, TABLE | change
    try:
        flashinfer.append_paged_kv_cache(key, key, **where, paged_kv_cache=cache, **table)
    except IndexDataError:
        assert not cache.any()
        raise
    new = rows[:, None].expand(3, LATENT).contiguous()
    flashinfer.append_paged_mla_kv_cache(new, new, **where, ckv_cache=latent, kpe_cache=None, **table)
    assert torch.equal(cache[:, 0, :, 0, 0], latent[..., 0])
    assert torch.equal(cache, latent[:, None, :, None, :1].expand_as(cache))
    return {(page, slot): latent[page, slot, 0].item() for page, slot in latent[..., 0].nonzero().tolist()}


def test_rows_go_to_pages_of_their_requests():
    assert written(indices(0, 0, 1), indices(3, 7, 0)) == {(0, 3): 1.0, (4, 3): 2.0, (5, 0): 3.0}


TWO = "a position in [0, 8), the pages of its request, got"
ASTRAY = {
    "beyond the request's pages": (indices(0, 0, 1), indices(3, 9, 0), {}, f"positions[1] expected {TWO} 9 for request 0"),
    "beyond all pages": (
        indices(0, 0, 1), indices(3, 7, 4), {}, "positions[2] expected a position in [0, 4), the pages of its request, got 4"
    ),
    "beyond all indices": (
        indices(0, 0, 1), indices(3, 7, 4), {"kv_indptr": indices(0, 2, 9)},
        "kv_indptr[2] expected an entry in [0, 3], those of kv_indices, got 9 for request 1",
    ),
    "before all indices": (
        indices(0, 0, 1), indices(3, 7, 4), {"kv_indptr": indices(-2, 2, 3)},
        "kv_indptr[0] expected an entry in [0, 3], those of kv_indices, got -2 for request 0",
    ),
    "no pages": (indices(0, 0, 1), indices(3, 4, 0), {"kv_indices": indices()}, "kv_indptr[1] expected an entry in [0, 0]"),
    "no requests": (
        indices(0, 0, 1), indices(3, 4, 0), {"kv_indptr": indices(0)}, "batch_indices[0] expected a request in [0, 0)"
    ),
    "no such request": (
        indices(0, 0, 7), indices(3, 4, 0), {}, "batch_indices[2] expected a request in [0, 2), or -1, got 7."
    ),
    "a negative position": (indices(0, 0, 1), indices(3, -1, 0), {}, f"positions[1] expected {TWO} -1 for request 0"),
    "a page beyond the pool": (
        indices(0, 0, 1), indices(3, 4, 0), {"kv_indices": indices(0, 9, 5)},
        "kv_indices[1] expected a page in [0, 6), got 9 for request 0",
    ),
    "behind a row of no request": (indices(0, -1, 1), indices(3, 0, 4), {}, "positions[2] expected a position in [0, 4)"),
}  # fmt: skip


@pytest.mark.parametrize("case", ASTRAY)
def test_a_row_without_a_page_of_its_own_is_written_nowhere(case):
    request, position, change, message = ASTRAY[case]
    with pytest.raises(IndexDataError, match=rf"^append_paged_kv_cache\.run: {re.escape(message)}.*OPF-V001") as caught:
        written(request, position, **change)
    assert f"{caught.value.argument}[{caught.value.position}]" == message.split()[0]


def test_a_latent_row_without_a_page_is_told_by_its_own_arguments():
    cache = torch.zeros(6, PAGE, LATENT)
    with pytest.raises(
        IndexDataError, match=r"^append_paged_mla_kv_cache\.run: positions\[0\] expected a position in \[0, 8\)"
    ):
        flashinfer.append_paged_mla_kv_cache(
            torch.ones(1, LATENT), torch.ones(1, LATENT), indices(0), indices(8), ckv_cache=cache, kpe_cache=None, **TABLE
        )
    assert not cache.any()


LATER = {
    -1: r"positions\[1\] expected a position in the pages of its request, got one without a page",
    9: r"kv_indices expected a page in \[0, 6\), got 9 for row 1",
}


@pytest.mark.parametrize("page", LATER)
def test_a_row_that_a_device_found_is_told_by_the_arguments_of_its_call(page, monkeypatch):
    """The tensors of that call may have changed, so only its row is named."""
    found = index_error("paged_kv_append", "kv_indices", 1, page, "a page in [0, 6)", request=1, call=4)

    def run(args):
        raise found

    monkeypatch.setattr(flashinfer.page, "appended", lambda *given: Call(SimpleNamespace(run=run), None))
    told = rf"^append_paged_kv_cache\.run: {LATER[page]} \(found on the device during checked call 4\)\. \[OPF-V001\]"
    with pytest.raises(IndexDataError, match=told) as caught:
        written(indices(0, 0, 1), indices(3, 4, 0))
    assert (caught.value.asynchronous, caught.value.call_id, caught.value.value) == (True, 4, page)


def test_rows_of_no_request_are_not_written_and_shift_no_other():
    assert written(indices(0, 1, -1), indices(3, 1, 0)) == {(0, 3): 1.0, (5, 1): 2.0}
    assert written(indices(0, -1, 1), indices(3, 4, 0)) == {(0, 3): 1.0, (5, 0): 3.0}
    assert written(indices(-1, -1, 1), indices(3, 4, 0)) == {(5, 0): 3.0}
    assert written(indices(-1, -1, -1), indices(3, 4, 0)) == {}


# Sizes that plan() and run() both receive.


def latent_wrapper(lens=(6, 2)):
    pages = paged(lens, PAGE, 1, LATENT + ROPE)
    w = flashinfer.BatchMLAPagedAttentionWrapper(buffer())
    told = (HEADS, LATENT, ROPE, PAGE, False, 0.1, torch.float32, torch.float32)
    w.plan(indptr(1, 1), pages.indptr, pages.indices, indices(*lens), *told)
    return w


LATENT_GIVEN = {
    "q_nope": torch.ones(2, HEADS, LATENT),
    "q_pe": torch.ones(2, HEADS, ROPE),
    "ckv_cache": torch.ones(9, PAGE, LATENT),
    "kpe_cache": torch.ones(9, PAGE, ROPE),
}
UNLIKE = [
    ({"ckv_cache": torch.ones(9, 2 * PAGE, LATENT), "kpe_cache": torch.ones(9, 2 * PAGE, ROPE)}, "ckv_cache"),
    ({"kpe_cache": torch.ones(9, 2 * PAGE, ROPE)}, "kpe_cache"),
    ({"q_nope": torch.ones(2, HEADS, 16), "ckv_cache": torch.ones(9, PAGE, 16)}, "q_nope"),
    ({"ckv_cache": torch.ones(9, PAGE, 16)}, "ckv_cache"),
    ({"q_pe": torch.ones(2, HEADS, 16), "kpe_cache": torch.ones(9, PAGE, 16)}, "kpe_cache"),
]


@pytest.mark.parametrize(("change", "named"), UNLIKE, ids=["pages", "pages of one", "width", "width of one", "rotated width"])
def test_latent_tensors_are_as_plan_has_them(change, named):
    w = latent_wrapper()
    w.run(**LATENT_GIVEN)
    with pytest.raises(ShapeError, match=rf"\b{named} expected .*, as passed to plan\(\)"):
        w.run(**(LATENT_GIVEN | change))
    if named == "kpe_cache" and "q_pe" in change:
        return  # plan() of the older wrapper lacks this size
    older = flashinfer.BatchDecodeMlaWithPagedKVCacheWrapper(buffer())
    older.plan(indices(0, 2, 3), indices(0, 1, 2), indices(2, 2), HEADS, LATENT, PAGE, 0.1, data_type=torch.float32)
    older.run(*LATENT_GIVEN.values())
    with pytest.raises(ShapeError, match=rf"\b{named} expected .*, as passed to plan\(\)"):
        older.run(*(LATENT_GIVEN | change).values())


@pytest.mark.parametrize("size", [0, -1, None, 4.0, "x", torch.ones(2), 2**200])
def test_a_page_size_is_an_integer(size):
    w, tables = flashinfer.BatchMLAPagedAttentionWrapper(buffer()), (indptr(1, 1), indices(0, 2, 3), indices(0, 1, 2))
    with pytest.raises(ArgumentError, match="page_size expected"):
        w.plan(*tables, indices(6, 2), HEADS, LATENT, ROPE, size, False, 0.1, torch.float32, torch.float32)


# Calls that write twice, or that plan and run.


@pytest.mark.parametrize("mask", [None, torch.tensor([True, False, True])])
def test_a_merge_in_place_writes_both_or_none(mask):
    v, other, zeros = torch.randn(3, 2, DIM), torch.randn(3, 2, DIM), torch.zeros(3, 2)
    before = v.clone()
    with pytest.raises(LayoutError, match="s expected separate memory for each element"):
        flashinfer.merge_state_in_place(v, torch.zeros(3, 1).expand(3, 2), other, zeros, mask=mask)
    assert torch.equal(v, before)
    flashinfer.merge_state_in_place(v[:1], torch.zeros(1, 2).expand(1, 2), other[:1], zeros[:1])
    s = torch.zeros(3, 2)
    with pytest.raises(ArgumentError):
        flashinfer.merge_state_in_place(before[:, :1].expand(3, 2, DIM), s, other, zeros, mask=mask)
    assert not s.any()


def graph_of(kind):
    """A wrapper with a graph, the tensors that it reads, and tables of plan() by name."""
    sizes = {"qo_indptr": 3, "kv_indptr": 3, "indices": 9, "last": 2}
    own = {name: torch.full((n,), 7, dtype=torch.int32) for name, n in sizes.items()}
    more = {"q_data_type": torch.float32}
    if kind == "decode":
        own.pop("qo_indptr")
        w = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(buffer(), *own.values())
        tables = {"indptr": indptr(2, 1), "indices": indices(0, 1, 2), "last_page_len": indices(2, 2)}
        return w, own.values(), tables, more | {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": DIM, "page_size": PAGE}
    if kind == "ragged":
        buffers = (own["qo_indptr"], own["kv_indptr"])
        w = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(buffer(), "NHD", True, *buffers)
        sizes = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": DIM}
        return w, buffers, {"qo_indptr": indptr(2, 1), "kv_indptr": indptr(9, 5)}, more | sizes
    if kind == "prefill":
        w = flashinfer.BatchPrefillWithPagedKVCacheWrapper(buffer(), "NHD", True, *own.values())
        tables = {
            "paged_kv_indptr": indptr(3, 2),
            "paged_kv_indices": indices(0, 1, 2, 3, 4),
            "paged_kv_last_page_len": indices(1, 1),
        }
        sizes = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": DIM, "page_size": PAGE}
        return w, own.values(), {"qo_indptr": indptr(2, 1)} | tables, more | sizes
    if kind == "older latent":
        own.pop("qo_indptr")
        w = flashinfer.BatchDecodeMlaWithPagedKVCacheWrapper(buffer(), True, False, *own.values())
        tables = {"indptr": indptr(2, 1), "indices": indices(0, 1, 2), "last_page_len": indices(2, 2)}
        sizes = {"num_qo_heads": 4, "head_dim_compressed_kv": LATENT, "page_size": PAGE, "sm_scale": 0.1}
        return w, own.values(), tables, sizes
    w = flashinfer.BatchMLAPagedAttentionWrapper(buffer(), True, *own.values())
    tables = {"qo_indptr": indptr(1, 1), "kv_indptr": indptr(2, 1), "kv_indices": indices(0, 1, 2), "kv_len_arr": indices(6, 2)}
    sizes = {"num_heads": 4, "head_dim_ckv": LATENT, "head_dim_kpe": ROPE, "page_size": PAGE, "causal": False, "sm_scale": 0.1}
    return w, (*own.values(), w._last), tables, more | sizes | {"kv_data_type": torch.float32}


@pytest.mark.parametrize("kind", ["decode", "prefill", "ragged", "latent", "older latent"])
def test_a_plan_that_is_refused_leaves_the_graph_as_it_was(kind):
    w, own, tables, more = graph_of(kind)
    w.plan(**tables, **more)
    before = [x.clone() for x in own]
    assert any((x != 7).any() for x in before)
    other = {name: table.flip(0).abs() + 1 if "indices" in name else table for name, table in tables.items()}
    refused = [{name: table.long()} for name, table in tables.items()]
    refused += [{name: None} for name in tables] + [
        {"sm_scale": "x"},
        {"num_qo_heads" if kind != "latent" else "num_heads": "x"},
    ]
    refused += [{"custom_mask": torch.ones(9).bool()}] if kind in ("prefill", "ragged") else []
    for change in refused:
        with pytest.raises((ArgumentError, UnsupportedError)):
            w.plan(**(other | more | change))
        assert all(torch.equal(x, y) for x, y in zip(own, before, strict=True))


# Rows from which a sampler draws.


@pytest.mark.parametrize("wrong", [(0, 7), (-1, 1), (3,)])
def test_indices_on_the_host_name_rows(wrong):
    probs, given = torch.full((3, 9), 1 / 9), {"indices": indices(*wrong), "seed": 1, "offset": 0}
    calls = {
        "sampling_from_logits": {},
        "sampling_from_probs": {},
        "top_p_sampling_from_probs": {"top_p": 0.5},
        "top_k_top_p_sampling_from_logits": {"top_k": 3, "top_p": 0.5},
        "top_k_top_p_sampling_from_probs": {"top_k": 3, "top_p": 0.5},
    }
    for name, controls in calls.items():
        with pytest.raises(ArgumentError, match="indices expected rows 0 to 2"):
            getattr(flashinfer.sampling, name)(probs, **controls, **given)
