"""GPU tests of latent attention: repeatability, batch invariance, graph capture, and several rows per request."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target, explain
from opfacade.plans.mla import EXAMPLES, BatchMlaDecodeDescriptor, PagedLatentCacheDescriptor
from opfacade.testing import inputs, numerics
from opfacade.testing.families.attention.requests import Requests, same_bits

pytestmark = pytest.mark.gpu
CUDA = Preference(backend="cuda")
TAKEN = [d for d in EXAMPLES if explain(d, CUDA, Target.parse("sm_90a")).chosen is not None]
KV_LENS = [300, 1, 0, 1500, 640, 17, 2900, 1000, 900]


def decode_of(heads=128, page_size=16, tokens=9000, batch=9, **more):
    cache = PagedLatentCacheDescriptor(num_total_pages=tokens // page_size, page_size=page_size, dtype="bf16")
    return BatchMlaDecodeDescriptor(batch_size=batch, num_qo_heads=heads, paged_kv=cache, **more)


def held(descriptor, args):
    report = numerics.check(descriptor, args, Plan.select(descriptor, CUDA).sku, rows=16)
    assert report.worst <= 1, report


@pytest.mark.parametrize("descriptor", TAKEN, ids=lambda d: str(d.num_qo_heads))
def test_runs_repeat_bitwise(descriptor):
    plan = Plan.select(descriptor, CUDA)
    args = inputs.make_args(descriptor, seed=2, device="cuda")
    plan.run(args)
    o, lse = args.o.clone(), args.lse.clone()
    for repeat in range(100):
        workspace = torch.empty(plan.workspace_size + 256 * (repeat % 3), dtype=torch.uint8, device="cuda").random_()
        args.o.fill_(repeat), args.lse.fill_(repeat)
        plan.run(args, workspace)
        assert same_bits(args.o, o)
        assert same_bits(args.lse, lse)


@pytest.mark.parametrize("heads", [16, 128])
@pytest.mark.parametrize("split", ["off", 64, 256])
def test_a_request_does_not_see_its_batch(split, heads):
    whole = decode_of(heads, kv_split=split)
    plan, args = Plan.select(whole, CUDA), inputs.make_args(whole, 5, "cuda", inputs.DrawnLengths(kv=KV_LENS))
    assert plan.precision_guarantee.batch_invariant == "composition"
    plan.run(args)
    for request in range(len(KV_LENS)):
        descriptor, alone = Requests(whole, args).batch([request])
        Plan.select(descriptor, CUDA).run(alone)
        assert same_bits(alone.o[0], args.o[request])
        assert same_bits(alone.lse[0], args.lse[request])


@pytest.mark.parametrize("split", ["off", 64])
def test_the_bits_of_a_request_with_several_rows_do_not_depend_on_its_batch(split):
    whole = decode_of(16, kv_split=split, q_len=5)
    plan, args = Plan.select(whole, CUDA), inputs.make_args(whole, 5, "cuda", inputs.DrawnLengths(kv=KV_LENS))
    plan.run(args)
    for request in range(len(KV_LENS)):
        descriptor, alone = Requests(whole, args).batch([request])
        Plan.select(descriptor, CUDA).run(alone)
        rows = slice(5 * request, 5 * request + 5)
        assert same_bits(alone.o, args.o[rows])
        assert same_bits(alone.lse, args.lse[rows])


@pytest.mark.parametrize(("heads", "q_len"), [(16, 2), (16, 4), (16, 9), (24, 3), (5, 4), (8, 7), (2, 70), (64, 3), (128, 2)])
@pytest.mark.parametrize("more", [{}, {"window_left": 100, "kv_split": 128}, {"causal": False}], ids=str)
def test_several_rows_per_request_keep_the_error_bound(heads, q_len, more):
    """The cases load q by TMA boxes of all heads and rows, by TMA boxes of eight heads, and by threads."""
    descriptor = decode_of(heads, 64, q_len=q_len, **more)
    args = inputs.make_args(descriptor, 3, "cuda", inputs.DrawnLengths(kv=KV_LENS))
    Plan.select(descriptor, CUDA).run(args)
    held(descriptor, args)


@pytest.mark.parametrize("page_size", [16, 5])
def test_q_of_several_rows_may_be_a_transposed_view(page_size):
    """The memory layout of q_nope after a batched product over the heads is [heads, rows, 512]."""
    descriptor = decode_of(16, page_size, q_len=3)
    args = inputs.make_args(descriptor, 8, "cuda", inputs.DrawnLengths(kv=KV_LENS))
    plan = Plan.select(descriptor, CUDA)
    plan.run(args)
    by_heads = args.q_nope.transpose(0, 1).contiguous().transpose(0, 1)
    other = replace(args, q_nope=by_heads, o=torch.empty_like(args.o), lse=torch.empty_like(args.lse))
    plan.run(other)
    assert same_bits(other.o, args.o)
    assert same_bits(other.lse, args.lse)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_nonfinite_key_reaches_only_the_rows_that_see_it(value):
    descriptor = decode_of(16, 64, batch=2, q_len=4, page_table="block")
    args = inputs.make_args(descriptor, 6, "cuda", inputs.DrawnLengths(kv=[700, 90]))
    plan = Plan.select(descriptor, CUDA)
    plan.run(args)
    want = args.o.clone()
    args.ckv[int(args.block_table[0, 697 // 64]), 697 % 64, 5] = value  # rows 1 to 3 of request 0 attend to key 697
    plan.run(args)
    assert same_bits(args.o[[0, 4, 5, 6, 7]], want[[0, 4, 5, 6, 7]])
    assert not bool(args.o[1:4].isfinite().all(-1).any())


@pytest.mark.parametrize("page_size", [1, 5, 8, 16, 64, 256])
@pytest.mark.parametrize("heads", [16, 24, 64, 128])
def test_any_page_size_keeps_the_error_bound(heads, page_size):
    descriptor = decode_of(heads, page_size)
    args = inputs.make_args(descriptor, 3, "cuda", inputs.DrawnLengths(kv=KV_LENS))
    Plan.select(descriptor, CUDA).run(args)
    held(descriptor, args)


@pytest.mark.parametrize(("batch", "length", "heads"), [(1, 70_000, 128), (300, 700, 128), (130, 1024, 64), (7, 9001, 16)])
def test_every_ratio_of_requests_to_ctas_keeps_the_error_bound(batch, length, heads):
    """The cases have one long context on all SMs, several requests per CTA, and as many requests as CTAs."""
    pages = batch * -(-length // 64)
    descriptor = decode_of(heads, 64, pages * 64, batch)
    args = inputs.make_args(descriptor, 4, "cuda", inputs.DrawnLengths(kv=[length] * batch))
    Plan.select(descriptor, CUDA).run(args)
    held(descriptor, args)


def test_ckv_and_kpe_in_one_tensor_give_the_same_bits():
    descriptor = decode_of(64, 16)
    apart = inputs.make_args(descriptor, 6, "cuda", inputs.DrawnLengths(kv=KV_LENS))
    whole = torch.cat([apart.ckv, apart.kpe], -1)
    names = [name for name in type(apart).__slots__ if name not in ("ckv", "kpe", "o", "lse")]
    fields = {name: getattr(apart, name) for name in names}
    fields |= {"o": torch.empty_like(apart.o), "lse": torch.empty_like(apart.lse)}
    together = type(apart)(ckv=whole[..., :512], kpe=whole[..., 512:], **fields)
    plan = Plan.select(descriptor, CUDA)
    plan.run(apart), plan.run(together)
    assert same_bits(apart.o, together.o)
    assert same_bits(apart.lse, together.lse)


def test_a_replayed_graph_uses_the_current_lengths():
    descriptor = decode_of(128, 64, 6400, page_table="block")
    args = inputs.make_args(descriptor, 7, "cuda", inputs.DrawnLengths(kv=[640] * len(KV_LENS)))
    plan = Plan.select(descriptor, CUDA)
    plan.compile()
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
    plan.run(args, workspace)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(args, workspace)
    for lengths in ([640, 1, 64, 65, 0, 128, 300, 639, 5], [640] * len(KV_LENS)):
        args.kv_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        held(descriptor, args)
