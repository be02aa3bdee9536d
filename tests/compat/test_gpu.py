"""The adapters on a GPU, with kernels only: against the oracle, and in captured graphs whose lengths change."""

import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade import Preference
from opfacade.compat import preferring
from opfacade.compat.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from tests.compat.oracle import Scoring, attention
from tests.compat.pages import indptr, paged

pytestmark = pytest.mark.gpu
HEADS, KV_HEADS, DIM, PAGE = 8, 2, 128, 16
HALF = {"dtype": torch.float16, "device": "cuda"}


@pytest.fixture(autouse=True)
def _kernels_alone():
    torch.manual_seed(19)
    with preferring(Preference(backend="cuda")):
        yield


def near(got, want):
    torch.testing.assert_close(got.double().cpu(), want.double(), rtol=2e-2, atol=4e-3)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"causal": True}, {"causal": True}),
        ({"window_size": (30, 7)}, {"left": 30, "right": 7}),
        ({"causal": True, "softcap": 5.0}, {"causal": True, "cap": 5.0}),
    ],
)
@pytest.mark.parametrize("rows", [1, 63])
def test_dense_rows(given, meant, rows):
    q = torch.randn(2, rows, HEADS, DIM, **HALF)
    k, v = torch.randn(2, 2, 131, KV_HEADS, DIM, **HALF).unbind(0)
    out, lse, _ = flash_attn_func(q, k, v, return_attn_probs=True, **given)
    for b in range(2):
        want, natural = attention(q[b].cpu(), k[b].cpu(), v[b].cpu(), Scoring(**meant))
        near(out[b], want)
        near(lse[b], natural.T)


def test_slopes_and_ragged_rows():
    q, k, v = torch.randn(70, HEADS, DIM, **HALF), *torch.randn(2, 90, KV_HEADS, DIM, **HALF).unbind(0)
    cu_q, cu_k, slopes = indptr(7, 63).cuda(), indptr(27, 63).cuda(), torch.rand(HEADS, device="cuda")
    out = flash_attn_varlen_func(q, k, v, cu_q, cu_k, 63, 63, causal=True, alibi_slopes=slopes)
    for rows, keys in ((slice(0, 7), slice(0, 27)), (slice(7, 70), slice(27, 90))):
        near(out[rows], attention(q[rows].cpu(), k[keys].cpu(), v[keys].cpu(), Scoring(causal=True, slopes=slopes.cpu()))[0])


def test_a_step_of_generation_in_a_graph():
    """Appends with angles and attention are captured once; lengths grow on the device."""
    cache = torch.randn(2, 3, 200, KV_HEADS, DIM, **HALF)
    q, (k, v) = torch.randn(3, 1, HEADS, DIM, **HALF), torch.randn(2, 3, 1, KV_HEADS, DIM, **HALF).unbind(0)
    angle = torch.rand(200, DIM // 2, device="cuda") * 6
    cos, sin = angle.cos().half(), angle.sin().half()
    lens = torch.tensor([5, 100, 63], dtype=torch.int32, device="cuda")

    def step(k_cache, v_cache):
        return flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cos, sin, cache_seqlens=lens, causal=True)

    own = cache.clone()
    step(*own.unbind(0))
    own.copy_(cache)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(*own.unbind(0))
    for grown in (0, 11):
        lens.add_(grown)
        own.copy_(cache)
        graph.replay()
        eager = cache.clone()
        want = step(*eager.unbind(0))
        torch.cuda.synchronize()
        assert torch.equal(own, eager)
        torch.testing.assert_close(out, want)


def test_decode_in_a_graph_reads_the_buffers_of_the_wrapper():
    buffers = [torch.zeros(n, dtype=torch.int32, device="cuda") for n in (5, 64, 4)]
    workspace = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    w = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(workspace, *buffers)
    q = torch.randn(4, HEADS, DIM, **HALF)
    pool = torch.zeros(64, 2, PAGE, KV_HEADS, DIM, **HALF)
    graph, result = torch.cuda.CUDAGraph(), None
    for lens in ([40, 1, 100, 33], [7, 200, 16, 17]):
        pages = paged(lens, PAGE, KV_HEADS, DIM, dtype=torch.float16)
        pool[: pages.k.shape[0], 0].copy_(pages.k)
        pool[: pages.v.shape[0], 1].copy_(pages.v)
        w.plan(*pages.table, HEADS, KV_HEADS, DIM, PAGE)
        if result is None:
            w.run(q, pool)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                result = w.run(q, pool)
        graph.replay()
        torch.cuda.synchronize()
        for b, (k, v) in enumerate(pages.rows):
            near(result[b], attention(q[b : b + 1].cpu(), k, v)[0][0])


@pytest.mark.parametrize("masked", [False, True])
def test_prefill_over_pages_and_its_mask(masked):
    rows, lens = [63, 1, 7], [131, 40, 7]
    pages = paged(lens, PAGE, KV_HEADS, DIM, dtype=torch.float16)
    masks = [torch.rand(n, m) < 0.7 for n, m in zip(rows, lens, strict=True)]
    given = {"custom_mask": torch.cat([mask.flatten() for mask in masks]).cuda()} if masked else {"causal": True}
    w = flashinfer.BatchPrefillWithPagedKVCacheWrapper(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
    w.plan(indptr(*rows), *pages.table, HEADS, KV_HEADS, DIM, PAGE, **given)
    q = torch.randn(sum(rows), HEADS, DIM, **HALF)
    o, lse = w.run(q, (pages.k.cuda(), pages.v.cuda()), return_lse=True, lse_base="ln")
    at = 0
    for b, n in enumerate(rows):
        scoring = Scoring(mask=masks[b]) if masked else Scoring(causal=True)
        want, natural = attention(q[at : at + n].cpu(), *pages.rows[b], scoring)
        near(o[at : at + n], want)
        near(lse[at : at + n], natural)
        at += n


def test_rows_go_to_any_positions():
    pages = paged([40, 1, 100], PAGE, KV_HEADS, DIM, dtype=torch.float16)
    cache = torch.stack([pages.k, pages.v], 1).nan_to_num(0.0)
    new = torch.randn(2, 4, KV_HEADS, DIM).half()
    where = torch.tensor([2, 0, 2, -1], dtype=torch.int32), torch.tensor([77, 39, 3, 0], dtype=torch.int32)
    table = (pages.indices, pages.indptr, pages.last)
    wanted = cache.clone()
    with preferring(None):
        flashinfer.append_paged_kv_cache(*new, *where, wanted, *table)
    got = cache.cuda()
    on_gpu = [x.cuda() for x in (*new, *where)]
    flashinfer.append_paged_kv_cache(*on_gpu, got, *(x.cuda() for x in table))
    assert torch.equal(got.cpu(), wanted)


def test_rows_without_a_page_of_their_own_are_written_nowhere():
    """The host does not wait. Rows of no request, of an invalid request, of a negative position, or past a request's pages."""
    pages = paged([40, 1, 100], PAGE, KV_HEADS, DIM, dtype=torch.float16)
    cache = torch.stack([pages.k, pages.v], 1).nan_to_num(0.0)
    new = torch.randn(2, 7, KV_HEADS, DIM).half()
    request, position = torch.tensor([[0, -1, 0, 3, 1, 0, 2], [1, 2, 1000, 0, PAGE, -1, 5]], dtype=torch.int32).unbind(0)
    table = (pages.indices, pages.indptr, pages.last)
    wanted, kept = cache.clone(), torch.tensor([0, 6])
    with preferring(None):
        flashinfer.append_paged_kv_cache(new[0, kept], new[1, kept], request[kept], position[kept], wanted, *table)
    got = cache.cuda()
    on_gpu = [x.cuda() for x in (*new, request, position)]
    flashinfer.append_paged_kv_cache(*on_gpu, got, *(x.cuda() for x in table))
    assert torch.equal(got.cpu(), wanted)


def test_sampling_gives_the_tokens_of_the_reference():
    probs = torch.randn(64, 1003).softmax(-1)
    seed, offset = torch.randint(2**62, (64,)), torch.randint(2**30, (64,))
    calls = {"sampling_from_probs": (), "top_k_top_p_sampling_from_probs": (50, 0.9), "min_p_sampling_from_probs": (0.1,)}
    for name, controls in calls.items():
        call = getattr(flashinfer, name)
        found, valid = call(probs.cuda(), *controls, seed=seed.cuda(), offset=offset.cuda(), return_valid=True)
        with preferring(None):
            wanted = call(probs, *controls, seed=seed, offset=offset)
        assert torch.equal(found.cpu(), wanted), name
        assert valid.all()
    drafts, q, p = torch.randint(1003, (8, 3)), probs[:24].view(8, 3, -1), probs[:32].view(8, 4, -1)
    given = {"seed": seed[:8], "offset": offset[:8]}
    found = flashinfer.chain_speculative_sampling(q.cuda(), drafts.cuda(), p.cuda(), **{n: x.cuda() for n, x in given.items()})
    with preferring(None):
        wanted = flashinfer.chain_speculative_sampling(q, drafts, p, **given)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours.cpu(), theirs)


def test_a_captured_draw_gives_other_tokens_at_each_replay():
    logits = torch.randn(32, 4099, device="cuda")
    flashinfer.top_k_top_p_sampling_from_logits(logits, 50, 0.9)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = flashinfer.top_k_top_p_sampling_from_logits(logits, 50, 0.9)
    found = []
    for _ in range(2):
        graph.replay()
        found.append(tokens.clone())
    assert not torch.equal(*found)
