"""FlashInfer's latent attention, cascade, merges, BatchAttention, pages and bits, against oracles in float64."""

import math

import numpy as np
import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade import Preference
from opfacade.compat import preferring
from opfacade.errors import (
    ArgumentError,
    DTypeError,
    MissingNameError,
    OpfacadeError,
    PlanStateError,
    ShapeError,
    UnsupportedError,
)
from tests.compat.oracle import Scoring, attention, close
from tests.compat.pages import indptr, paged

HEADS, KV_HEADS, DIM, PAGE = 6, 2, 16, 4
LATENT, ROPE = 32, 8
LOG2E = math.log2(math.e)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(13)


def buffer():
    return torch.empty(1 << 16, dtype=torch.uint8)


def latent_pages(lens):
    """ckv and kpe, stored as K and V of one head, and the rows of each request."""
    pages = paged(lens, PAGE, 1, LATENT + ROPE)
    return pages, pages.k[:, :, 0, :LATENT], pages.k[:, :, 0, LATENT:]


def check_latent(result, q_nope, q_pe, pages, q_lens, causal):
    o, lse = result
    at = 0
    for (row, _), n in zip(pages.rows, q_lens, strict=True):
        own = slice(at, at + n)
        at += n
        q = torch.cat([q_nope[own], q_pe[own]], -1)
        want, natural = attention(q, row, row[..., :LATENT], Scoring(scale=0.2, causal=causal))
        close(o[own], want)
        close(lse[own], natural * LOG2E)


@pytest.mark.parametrize(
    ("q_lens", "lens"), [([1] * 4, [9, 0, 4, 13]), ([3] * 4, [9, 2, 4, 13]), ([3, 0, 4, 1], [9, 2, 4, 13]), ([0, 0], [9, 2])]
)
@pytest.mark.parametrize("causal", [True, False])
def test_latent_attention(q_lens, lens, causal):
    pages, ckv, kpe = latent_pages(lens)
    q_nope, q_pe = torch.randn(sum(q_lens), HEADS, LATENT), torch.randn(sum(q_lens), HEADS, ROPE)
    w = flashinfer.mla.BatchMLAPagedAttentionWrapper(buffer(), backend="fa2")
    lens = torch.tensor(lens, dtype=torch.int32)
    dtypes = (torch.float32, torch.float32)
    w.plan(indptr(*q_lens), pages.indptr, pages.indices, lens, HEADS, LATENT, ROPE, PAGE, causal, 0.2, *dtypes)
    result = w.run(q_nope, q_pe, ckv, kpe, return_lse=True)
    check_latent(result, q_nope, q_pe, pages, q_lens, causal)
    natural = w.run(q_nope, q_pe, ckv, kpe, return_lse=True, return_lse_base_on_e=True)[1]
    torch.testing.assert_close(natural * LOG2E, result[1])
    out = torch.full_like(q_nope, torch.nan)
    lse = torch.full_like(natural, torch.nan)
    assert w.run(q_nope, q_pe, ckv, kpe, out=out, lse=lse) is out
    assert torch.equal(lse, result[1])
    assert torch.equal(out, w.run_return_lse(q_nope, q_pe, ckv, kpe)[0])


@pytest.mark.parametrize("rows", [1, 3])
def test_latent_attention_in_a_graph_reads_its_buffers(rows):
    buffers = [torch.zeros(n, dtype=torch.int32) for n in (4, 4, 20, 3)]
    w = flashinfer.BatchMLAPagedAttentionWrapper(buffer(), True, *buffers)
    for lens in ([9, 1, 4], [2, 8, 13]):
        pages, ckv, kpe = latent_pages(lens)
        tables = (indptr(*[rows] * 3), pages.indptr, pages.indices, torch.tensor(lens, dtype=torch.int32))
        w.plan(*tables, HEADS, LATENT, ROPE, PAGE, True, 0.2, torch.float32, torch.float32)
        last = w._planned.table.operands["last_page_len"].data_ptr()
        q_nope, q_pe = torch.randn(3 * rows, HEADS, LATENT), torch.randn(3 * rows, HEADS, ROPE)
        check_latent(w.run(q_nope, q_pe, ckv, kpe, return_lse=True), q_nope, q_pe, pages, [rows] * 3, True)
    assert w._planned.table.operands["last_page_len"].data_ptr() == last
    for other in ([2, 1, 1], [rows + 1] * 3, [0, 0, 0]):
        with pytest.raises(UnsupportedError, match=f"qo_indptr expected {rows} rows, as before, of each request"):
            w.plan(indptr(*other), *tables[1:], HEADS, LATENT, ROPE, PAGE, True, 0.2, torch.float32, torch.float32)


def test_a_new_graph_of_latent_attention_has_equally_many_rows():
    buffers = [torch.zeros(n, dtype=torch.int32) for n in (3, 3, 20, 2)]
    w = flashinfer.BatchMLAPagedAttentionWrapper(buffer(), True, *buffers)
    pages, _, _ = latent_pages([9, 4])
    tables = (pages.indptr, pages.indices, torch.tensor([9, 4], dtype=torch.int32))
    with pytest.raises(UnsupportedError, match="qo_indptr expected equally many rows of each request"):
        w.plan(indptr(2, 1), *tables, HEADS, LATENT, ROPE, PAGE, True, 0.2, torch.float32, torch.float32)


def test_equally_many_rows_of_latent_attention_are_one_call():
    """Keys are not read once per row: the descriptor has the requests, with their pages as passed."""
    pages, ckv, kpe = latent_pages([9, 4])
    w = flashinfer.BatchMLAPagedAttentionWrapper(buffer())
    lens = torch.tensor([9, 4], dtype=torch.int32)
    w.plan(indptr(2, 2), pages.indptr, pages.indices, lens, HEADS, LATENT, ROPE, PAGE, True, 0.2, torch.float32, torch.float32)
    assert (w._planned.table.form, w._planned.table.batch, w._planned.scores.q_len) == ("csr", 2, 2)
    with pytest.raises(ShapeError, match=r"q_nope expected \[rows=4, num_heads=6"):
        w.run(torch.ones(2, HEADS, LATENT), torch.ones(2, HEADS, ROPE), ckv, kpe)


def test_the_older_wrapper_of_latent_attention():
    lens = [9, 1, 4, 13]
    pages, ckv, kpe = latent_pages(lens)
    q_nope, q_pe = torch.randn(4, HEADS, LATENT), torch.randn(4, HEADS, ROPE)
    w = flashinfer.BatchDecodeMlaWithPagedKVCacheWrapper(buffer())
    w.plan(*pages.table, HEADS, LATENT, PAGE, 0.4, data_type=torch.float32)
    check_latent(w.run(q_nope, q_pe, ckv, kpe, q_scale=0.5, return_lse=True), q_nope, q_pe, pages, [1] * 4, True)
    twice = w.run(q_nope, q_pe, ckv, kpe, q_scale=0.5, v_scale=2.0)
    torch.testing.assert_close(twice, 2 * w.run(q_nope, q_pe, ckv, kpe, k_scale=0.5))


@pytest.mark.parametrize(("ckv_scale", "kpe_scale"), [(0.5, 0.5), (0.5, 2.0), (1.0, 1.0)])
def test_latent_rows_of_fp8_have_factors(ckv_scale, kpe_scale):
    fp8, lens = torch.float8_e4m3fn, [9, 1, 4]
    pages, ckv, kpe = latent_pages(lens)
    ckv, kpe = ckv.nan_to_num(0.0).to(fp8), kpe.nan_to_num(0.0).to(fp8)
    q_nope, q_pe = torch.randn(3, HEADS, LATENT), torch.randn(3, HEADS, ROPE)
    w = flashinfer.BatchMLAPagedAttentionWrapper(buffer())
    told = (HEADS, LATENT, ROPE, PAGE, True, 0.2, torch.float32, fp8)
    w.plan(indptr(1, 1, 1), pages.indptr, pages.indices, torch.tensor(lens, dtype=torch.int32), *told)
    with pytest.raises(ArgumentError, match="kpe_scale expected a number"):
        w.run(q_nope, q_pe, ckv, kpe, ckv_scale=1.0)
    result = w.run(q_nope, q_pe, ckv, kpe, ckv_scale=ckv_scale, kpe_scale=kpe_scale, return_lse=True)
    rows = [row[:, 0].to(fp8).float() for row, _ in pages.rows]
    wide = [torch.cat([row[:, :LATENT] * ckv_scale, row[:, LATENT:] * kpe_scale], -1)[:, None] for row in rows]
    pages.rows = [(row, row) for row in wide]
    check_latent(result, q_nope, q_pe, pages, [1, 1, 1], True)


@pytest.mark.parametrize(("q_lens", "batch"), [((1, 1), 2), ((2, 1), 3)])
def test_plan_of_latent_attention_refuses_a_problem_that_the_preference_refuses(q_lens, batch):
    """plan() fails too, not only run(): an engine plans before it has tensors. A CPU has no kernel; the reference accepts the
    problem.
    """
    pages, lens = latent_pages([9, 4])[0], torch.tensor([9, 4], dtype=torch.int32)
    w = flashinfer.BatchMLAPagedAttentionWrapper(buffer())
    told = (HEADS, LATENT, ROPE, PAGE, True, 0.2, torch.float16, torch.float8_e4m3fn)
    with preferring(Preference(backend="cuda")), pytest.raises(UnsupportedError, match="OPF-S"):
        w.plan(indptr(*q_lens), pages.indptr, pages.indices, lens, *told)
    assert w._planned is None
    with preferring(Preference(backend="reference")):
        w.plan(indptr(*q_lens), pages.indptr, pages.indices, lens, *told)
    assert w._planned.table.batch == batch
    without = (HEADS, LATENT, 0, PAGE, True, 0.2, torch.float32, torch.float32)
    with pytest.raises(UnsupportedError, match="head_dim_kpe expected a rotated part with at least one element"):
        w.plan(indptr(*q_lens), pages.indptr, pages.indices, lens, *without)


MLA_REFUSED = [
    ({"kv_len": torch.ones(1)}, UnsupportedError, "kv_len"),
    ({"page_table": torch.ones(1)}, UnsupportedError, "page_table"),
    ({"ckv_scale": 2.0}, UnsupportedError, "ckv_scale"),
    ({"o_scale": 2.0}, UnsupportedError, "o_scale"),
    ({"q_nope": torch.ones(3, HEADS, LATENT, dtype=torch.float16)}, DTypeError, "q_nope"),
    ({"q_nope": torch.ones(2, HEADS, LATENT)}, ShapeError, "q_nope"),
    ({"kpe_cache": torch.ones(9, PAGE, 0)}, UnsupportedError, "kpe_cache"),
]


@pytest.mark.parametrize(("change", "error", "named"), MLA_REFUSED, ids=[named for _, _, named in MLA_REFUSED])
def test_latent_attention_refuses_by_name(change, error, named):
    pages, ckv, kpe = latent_pages([9, 1, 4])
    w = flashinfer.BatchMLAPagedAttentionWrapper(buffer())
    lens = torch.tensor([9, 1, 4], dtype=torch.int32)
    given = {"q_nope": torch.ones(3, HEADS, LATENT), "q_pe": torch.ones(3, HEADS, ROPE), "ckv_cache": ckv, "kpe_cache": kpe}
    with pytest.raises(PlanStateError, match="plan expected"):
        w.run(**given)
    told = (HEADS, LATENT, ROPE, PAGE, True, 0.2, torch.float32, torch.float32)
    w.plan(indptr(1, 1, 1), pages.indptr, pages.indices, lens, *told)
    with pytest.raises(error, match=rf"\b{named} expected"):
        w.run(**(given | change))
    with pytest.raises(UnsupportedError, match="metadata expected None"):
        w.plan(indptr(1, 1, 1), pages.indptr, pages.indices, lens, *told, metadata=object())


def states(count, rows=5, dtype=torch.float32):
    lse = torch.randn(count, rows, HEADS) * 3
    lse[0, 1], lse[:, 2] = -math.inf, -math.inf
    return torch.randn(count, rows, HEADS, DIM, dtype=dtype), lse


def merged(v, s):
    """Base 2."""
    s = s.double() / LOG2E
    lse = s.logsumexp(0)
    weight = torch.where(lse == -math.inf, 0.0, (s - lse).exp())
    return (weight[..., None] * v.double()).sum(0), lse * LOG2E


@pytest.mark.parametrize("count", [1, 2, 5, 11])
def test_merges_of_states(count):
    v, s = states(count)
    o, lse = flashinfer.merge_states(v.transpose(0, 1), s.transpose(0, 1))
    want = merged(v, s)
    close(o, want[0])
    close(lse, want[1])
    if count == 2:
        two = flashinfer.merge_state(v[0], s[0], v[1], s[1])
        assert torch.equal(two[0], o)
        assert torch.equal(two[1], lse)


@pytest.mark.parametrize("masked", [False, True])
def test_a_merge_in_place(masked):
    (v, s), mask = states(2), torch.tensor([True, False, True, False, True])
    own, lse = v[0].clone(), s[0].clone()
    flashinfer.merge_state_in_place(own, lse, v[1], s[1], mask if masked else None)
    want = merged(v, s)
    keep = ~mask if masked else torch.zeros(5, dtype=torch.bool)
    close(own[~keep], want[0][~keep])
    close(lse[~keep], want[1][~keep])
    assert torch.equal(lse[keep], s[0][keep])
    live = keep & (s[0, :, 0] != -math.inf)
    assert torch.equal(own[live], v[0][live])


def test_merges_refuse_by_name():
    with pytest.raises(ShapeError, match="s expected"):
        flashinfer.merge_states(torch.zeros(5, 2, HEADS, DIM), torch.zeros(5, 3, HEADS))
    with pytest.raises(OpfacadeError, match="v expected"):
        flashinfer.merge_state(torch.zeros(5, DIM), torch.zeros(5, HEADS), torch.zeros(5, DIM), torch.zeros(5, HEADS))


@pytest.mark.parametrize("causal", [True, False])
def test_levels_of_a_cascade(causal):
    shared, own, q_lens = [8], [5, 4, 9], [3, 2, 4]
    first, second = paged(shared, PAGE, KV_HEADS, DIM), paged(own, PAGE, KV_HEADS, DIM)
    k, v = torch.cat([first.k, second.k]), torch.cat([first.v, second.v])
    w = flashinfer.MultiLevelCascadeAttentionWrapper(2, buffer(), "NHD")
    tables = [
        [indptr(sum(q_lens)), indptr(*q_lens)],
        [first.indptr, second.indptr],
        [first.indices, second.indices + first.k.shape[0]],
        [first.last, second.last],
    ]
    w.plan(*tables, HEADS, KV_HEADS, DIM, PAGE, causal=causal, q_data_type=torch.float32)
    q, at = torch.randn(sum(q_lens), HEADS, DIM), 0
    o = w.run(q, torch.stack([k, v], 1))
    w.end_forward()
    for b, n in enumerate(q_lens):
        keys, values = (torch.cat([first.rows[0][i], second.rows[b][i]]) for i in (0, 1))
        torch.testing.assert_close(o[at : at + n].double(), attention(q[at : at + n], keys, values, Scoring(causal=causal))[0])
        at += n
    with pytest.raises(ArgumentError, match="qo_indptr_arr expected 2 levels"):
        w.plan(tables[0][:1], *tables[1:], HEADS, KV_HEADS, DIM, PAGE)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_prefix_that_all_share(rows):
    lens = [5, 4, 9]
    pages, prefix = paged(lens, PAGE, KV_HEADS, DIM, dtype=torch.float16), torch.randn(2, 7, KV_HEADS, DIM).half()
    q, sizes = torch.randn(3 * rows, HEADS, DIM).half(), (HEADS, KV_HEADS, DIM, PAGE)
    if rows == 1:
        w = flashinfer.BatchDecodeWithSharedPrefixPagedKVCacheWrapper(buffer())
        w.begin_forward(*pages.table, *sizes)
        o = w.forward(q, *prefix, (pages.k, pages.v))
    else:
        w = flashinfer.BatchPrefillWithSharedPrefixPagedKVCacheWrapper(buffer())
        w.begin_forward(indptr(*[rows] * 3), *pages.table, *sizes)
        o = w.forward(q, *prefix, (pages.k, pages.v), causal=True)
    w.end_forward()
    for b in range(3):
        keys, values = (torch.cat([prefix[i], pages.rows[b][i]]) for i in (0, 1))
        own = slice(b * rows, (b + 1) * rows)
        want = attention(q[own], keys, values, Scoring(causal=True))[0]
        torch.testing.assert_close(o[own].double(), want, rtol=2**-8, atol=2**-9)


def test_a_mixed_batch():
    lens, q_lens = [9, 2, 4, 13], [3, 0, 4, 1]
    pages, q = paged(lens, PAGE, KV_HEADS, DIM), torch.randn(8, HEADS, DIM)
    w = flashinfer.BatchAttention("NHD", device="cpu")
    f32 = {"q_data_type": torch.float32, "kv_data_type": torch.float32}
    tables = (indptr(*q_lens), pages.indptr, pages.indices, torch.tensor(lens, dtype=torch.int32))
    w.plan(*tables, HEADS, KV_HEADS, DIM, DIM, PAGE, causal=True, logits_soft_cap=2.0, **f32)
    (o, lse), at = w.run(q, (pages.k, pages.v)), 0
    for b, n in enumerate(q_lens):
        want, natural = attention(q[at : at + n], *pages.rows[b], Scoring(causal=True, cap=2.0))
        close(o[at : at + n], want)
        close(lse[at : at + n], natural * LOG2E)
        at += n
    with pytest.raises(UnsupportedError, match="logits_soft_cap expected"):
        w.run(q, (pages.k, pages.v), logits_soft_cap=3.0)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("form", ["pair", "one tensor"])
def test_rows_go_to_any_positions(layout, form):
    lens = [9, 0, 4, 13]
    pages = paged(lens, PAGE, KV_HEADS, DIM, layout)
    request, position = [3, 0, 3, 2, -1], [12, 0, 5, 3, 0]
    rows = torch.randn(2, 5, KV_HEADS, DIM)
    cache = (pages.k.clone(), pages.v.clone()) if form == "pair" else torch.stack([pages.k, pages.v], 1)
    wanted = [pages.k.clone(), pages.v.clone()]
    for i, (b, t) in enumerate(zip(request[:4], position, strict=False)):
        at = pages.indices[pages.indptr[b] + t // PAGE], t % PAGE
        for pool, new in zip(wanted, rows, strict=True):
            (pool if layout == "NHD" else pool.transpose(1, 2))[at] = new[i]
    where = torch.tensor(request, dtype=torch.int32), torch.tensor(position, dtype=torch.int32)
    table = (pages.indices, pages.indptr, pages.last)
    flashinfer.append_paged_kv_cache(rows[0], rows[1], *where, cache, *table, kv_layout=layout)
    got = cache if form == "pair" else cache.unbind(1)
    for pool, want in zip(got, wanted, strict=True):
        torch.testing.assert_close(pool, want, rtol=0, atol=0, equal_nan=True)


def test_latent_rows_go_to_their_pages():
    pages, ckv, kpe = latent_pages([9, 0, 4])
    ckv, kpe = ckv.contiguous(), kpe.contiguous()
    before = ckv.clone()
    new = torch.randn(3, LATENT), torch.randn(3, ROPE)
    where = torch.tensor([0, 2, 2], dtype=torch.int32), torch.tensor([8, 1, 3], dtype=torch.int32)
    flashinfer.append_paged_mla_kv_cache(*new, *where, ckv, kpe, pages.indices, pages.indptr, pages.last)
    for i, (b, t) in enumerate(zip(*(x.tolist() for x in where), strict=True)):
        page = pages.indices[pages.indptr[b] + t // PAGE]
        assert torch.equal(ckv[page, t % PAGE], new[0][i])
        assert torch.equal(kpe[page, t % PAGE], new[1][i])
        before[page, t % PAGE] = new[0][i]
    torch.testing.assert_close(ckv, before, rtol=0, atol=0, equal_nan=True)
    flashinfer.append_paged_mla_kv_cache(*new, *where, None, kpe, pages.indices, pages.indptr, pages.last)
    with pytest.raises(ShapeError, match="append_kpe expected"):
        flashinfer.append_paged_mla_kv_cache(new[0], new[0], *where, ckv, kpe, pages.indices, pages.indptr, pages.last)
    torch.testing.assert_close(ckv, before, rtol=0, atol=0, equal_nan=True)


def test_positions_and_lengths():
    rows, lens = indptr(1, 2, 0, 3), torch.tensor([5, 5, 2, 4], dtype=torch.int32)
    request, position = flashinfer.get_batch_indices_positions(rows, lens, 8)
    assert request.tolist() == [0, 1, 1, 3, 3, 3, -1, -1]
    assert position.tolist() == [4, 3, 4, 1, 2, 3, 0, 0]
    assert request.dtype == position.dtype == torch.int32
    own = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    got = flashinfer.get_batch_indices_positions(rows, lens, 8, *own)
    assert got[0] is own[0]
    assert torch.equal(own[1], position)
    pages = paged([9, 0, 4, 13], PAGE, KV_HEADS, DIM)
    assert flashinfer.get_seq_lens(pages.indptr, pages.last, PAGE).tolist() == [9, 0, 4, 13]


@pytest.mark.parametrize("order", ["big", "little"])
@pytest.mark.parametrize("count", [0, 1, 8, 29])
def test_bits_are_those_of_numpy(order, count):
    x = torch.rand(count) < 0.5
    assert flashinfer.packbits(x, order).tolist() == np.packbits(x.numpy(), bitorder=order).tolist()


@pytest.mark.parametrize("order", ["big", "little"])
def test_bits_of_segments_are_those_of_numpy(order):
    lens = [0, 5, 8, 0, 13, 1]
    x = torch.rand(sum(lens)) < 0.5
    packed, starts = flashinfer.segment_packbits(x, indptr(*lens), order)
    wanted = [np.packbits(part.numpy(), bitorder=order) for part in x.split(lens)]
    assert packed.tolist() == np.concatenate(wanted).tolist()
    assert starts.tolist() == np.cumsum([0, *map(len, wanted)]).tolist()
    with pytest.raises(ArgumentError, match="bitorder expected"):
        flashinfer.segment_packbits(x, indptr(*lens), "middle")


def test_what_is_not_there_is_named():
    with pytest.raises(
        AttributeError,
        match=r"xqa expected a name of opfacade\.compat\.flashinfer, .* docs/migrating\.md says what it has\. \[",
    ):
        _ = flashinfer.xqa
    with pytest.raises(MissingNameError, match=r"Near: .*\bsilu_and_mul\b.*\. \[OPF-C008\]") as caught:
        _ = flashinfer.silu_mul
    assert (caught.value.code, caught.value.op, caught.value.stage) == ("OPF-C008", "opfacade.compat.flashinfer", "import")
    assert not hasattr(flashinfer, "xqa")
    assert "_missing" not in str(caught.value)
    with pytest.raises(ImportError, match="cannot import name 'silu_mul'"):
        from opfacade.compat.flashinfer import silu_mul  # noqa: F401
