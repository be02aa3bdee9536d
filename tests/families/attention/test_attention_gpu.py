"""GPU tests of attention: repeatability, batch invariance, graphs, streams, strides, NaN in unused memory."""

import math

import pytest
import torch

from opfacade import Plan, Preference, Target, errors, explain
from opfacade.plans.attention import (
    EXAMPLES,
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillDescriptor,
    PagedKvCacheDescriptor,
)
from opfacade.testing import inputs, numerics

pytestmark = pytest.mark.gpu
CUDA = Preference(backend="cuda")
CACHE = PagedKvCacheDescriptor(num_total_pages=600, page_size=16, num_kv_heads=2, head_dim=128, dtype="bf16", layout="HND")


def same_bits(a, b):
    return a is b is None or torch.equal(a.view(torch.int16), b.view(torch.int16))


def outputs(args):
    return [t.clone() for t in (args.o, args.lse) if t is not None]


def spoil(args, workspace, value):
    for tensor in (args.o, args.lse):
        if tensor is not None:
            tensor.fill_(value)
    if workspace is not None:
        workspace.random_()


TAKEN = [d for d in EXAMPLES if explain(d, CUDA, Target.parse("sm_90a")).chosen is not None]


@pytest.mark.parametrize("descriptor", TAKEN, ids=lambda d: d.op)
def test_runs_repeat_bitwise(descriptor):
    plan = Plan.select(descriptor, CUDA)
    args = inputs.make_args(descriptor, seed=2, device="cuda")
    plan.run(args)
    first = outputs(args)
    for repeat in range(100):
        workspace = torch.empty(plan.workspace_size + 256 * (repeat % 3), dtype=torch.uint8, device="cuda")
        spoil(args, workspace, float(repeat))
        plan.run(args, workspace)
        assert all(same_bits(a, b) for a, b in zip(first, outputs(args), strict=True))


def decode_of(batch, **more):
    return BatchPagedDecodeDescriptor(batch_size=batch, num_qo_heads=8, paged_kv=CACHE, **more)


def prefill_of(batch, rows, **more):
    return BatchPagedPrefillDescriptor(
        batch_size=batch, total_num_rows=rows, num_qo_heads=8, causal=True, paged_kv=CACHE, **more
    )


def request_alone(descriptor_of, args, request, q_lens):
    """The same request as a batch of size one, with the same pool."""
    first = sum(q_lens[:request])
    rows = slice(first, first + q_lens[request])
    low, high = args.kv_indptr[request : request + 2].tolist()
    more = (
        {"q_indptr": torch.tensor([0, q_lens[request]], dtype=torch.int32, device="cuda")} if hasattr(args, "q_indptr") else {}
    )
    alone = type(args)(
        q=args.q[rows],
        k_data=args.k_data,
        v_data=args.v_data,
        kv_indptr=torch.tensor([0, high - low], dtype=torch.int32, device="cuda"),
        kv_indices=args.kv_indices[low:high].clone(),
        last_page_len=args.last_page_len[request : request + 1].clone(),
        o=torch.empty_like(args.o[rows]),
        lse=torch.empty_like(args.lse[rows]),
        **more,
    )
    Plan.select(descriptor_of(q_lens[request]), CUDA).run(alone)
    return alone, rows


@pytest.mark.parametrize("split", ["off", 64, 256])
@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_a_request_does_not_see_its_batch(kind, split):
    q_lens = [1] * 9 if kind == "decode" else [7, 1, 0, 130, 64, 3, 90, 1, 33]
    kv_lens = [300, 1, 0, 1500, 640, 17, 2900, 1000, 900]
    whole = decode_of(9, kv_split=split) if kind == "decode" else prefill_of(9, sum(q_lens), kv_split=split)

    def alone_of(rows):
        return decode_of(1, kv_split=split) if kind == "decode" else prefill_of(1, rows, kv_split=split)

    args = inputs.make_args(whole, seed=5, device="cuda", lengths=inputs.DrawnLengths(q=q_lens, kv=kv_lens))
    plan = Plan.select(whole, CUDA)
    assert plan.precision_guarantee.batch_invariant == "composition"
    plan.run(args)
    for request in range(9):
        alone, rows = request_alone(alone_of, args, request, q_lens)
        assert same_bits(alone.o, args.o[rows].contiguous())
        assert same_bits(alone.lse, args.lse[rows].contiguous())


def test_two_chunk_sizes_give_different_bits():
    """Negative control of the test above: two chunk sizes add in different orders."""
    found = []
    for split in (64, 256):
        descriptor = decode_of(4, kv_split=split)
        args = inputs.make_args(descriptor, seed=8, device="cuda", lengths=inputs.DrawnLengths(kv=[2000, 2000, 2000, 2000]))
        Plan.select(descriptor, CUDA).run(args)
        found.append(args.o.clone())
    assert not same_bits(*found)


@pytest.mark.parametrize("split", ["auto", "off", 128])
def test_a_captured_decode_is_right_after_the_lengths_change(split):
    descriptor = decode_of(8, page_table="block", kv_split=split)
    lengths = [[700, 3, 0, 64, 1200, 900, 16, 17], [1, 1000, 500, 0, 333, 1200, 15, 800]]
    args = inputs.make_args(descriptor, seed=1, device="cuda", lengths=inputs.DrawnLengths(kv=[1200] * 8))
    plan = Plan.select(descriptor, CUDA)
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
    plan.run(args, workspace)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(args, workspace)
    for kv in lengths:
        args.kv_lens.copy_(torch.tensor(kv, dtype=torch.int32))
        spoil(args, workspace, math.nan)
        graph.replay()
        assert numerics.check(descriptor, args, plan.sku).worst <= 1


def test_the_first_run_is_refused_during_capture():
    descriptor = decode_of(3, logits_soft_cap=11.0, kv_split=999)
    plan = Plan.select(descriptor, CUDA)
    args = inputs.make_args(descriptor, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(errors.PlanStateError) as caught, torch.cuda.graph(graph):
        plan.run(args)
    assert caught.value.code == "OPF-R003"
    plan.compile()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        plan.run(args, torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda"))


def test_run_neither_synchronises_nor_allocates():
    descriptor = decode_of(8)
    plan = Plan.select(descriptor, CUDA)
    args = inputs.make_args(descriptor, device="cuda")
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
    plan.run(args, workspace)
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            plan.run(args, workspace)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated


def test_a_kernel_is_launched_on_the_current_stream():
    descriptor = prefill_of(2, 100)
    plan = Plan.select(descriptor, CUDA)
    args = inputs.make_args(descriptor, seed=3, device="cuda")
    plan.run(args)
    want = outputs(args)
    spoil(args, None, math.nan)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        plan.run(args)
        assert not stream.query()
    torch.cuda.synchronize()
    assert all(same_bits(a, b) for a, b in zip(want, outputs(args), strict=True))


@pytest.mark.parametrize("pad", [1, 3, 8])
def test_q_o_and_the_pools_may_have_any_strides(pad):
    descriptor = prefill_of(3, 90)
    plan = Plan.select(descriptor, CUDA)
    args = inputs.make_args(descriptor, seed=4, device="cuda")
    plan.run(args)

    def padded(t):
        return torch.empty((*t.shape[:-1], t.shape[-1] + pad), dtype=t.dtype, device="cuda")[..., : t.shape[-1]].copy_(t)

    same = {name: getattr(args, name) for name in ("q_indptr", "kv_indptr", "kv_indices", "last_page_len")}
    wide = {name: padded(getattr(args, name)) for name in ("q", "k_data", "v_data", "o")}
    loose = type(args)(lse=torch.empty_like(args.lse), **wide, **same)
    loose.o.fill_(math.nan)
    plan.run(loose)
    assert same_bits(loose.o.contiguous(), args.o)
    assert same_bits(loose.lse, args.lse)


RAGGED = {"batch_size": 1, "total_num_rows": 200, "total_kv_rows": 200, "num_qo_heads": 4, "num_kv_heads": 2}
EVEN, UNEVEN = {"head_dim": 64}, {"head_dim": 192, "head_dim_vo": 128}


@pytest.mark.parametrize("names", [("q",), ("k",), ("v",), ("q", "k", "v", "o")], ids=" ".join)
@pytest.mark.parametrize("pad", [1, 8])
def test_rows_of_q_and_v_of_different_widths_may_have_any_strides(pad, names):
    """TMA cannot load rows that are not aligned to 16 bytes, so threads copy such rows."""
    descriptor = BatchRaggedPrefillDescriptor(**RAGGED, **UNEVEN, causal=True, dtype="bf16")
    plan = Plan.select(descriptor, CUDA)
    args = inputs.make_args(descriptor, seed=4, device="cuda")
    plan.run(args)
    same = {name: getattr(args, name) for name in ("q", "k", "v", "q_indptr", "kv_indptr")}
    wide = {"o": torch.empty_like(args.o), "lse": torch.empty_like(args.lse)}
    wide |= {name: torch.nn.functional.pad(getattr(args, name), (0, pad))[..., :-pad] for name in names}
    loose = type(args)(**same | wide)
    loose.o.fill_(math.nan)
    plan.run(loose)
    assert same_bits(loose.o.contiguous(), args.o)
    assert same_bits(loose.lse, args.lse)


@pytest.mark.parametrize(
    ("dims", "impl"), [(EVEN, "wgmma_tile"), (UNEVEN, "wgmma_tile"), (EVEN, "mma_tile")], ids=["even", "uneven", "mma_tile"]
)
@pytest.mark.parametrize("nonfinite", [math.nan, math.inf])
@pytest.mark.parametrize("pool", ["k", "v"])
def test_a_nonfinite_key_reaches_only_the_rows_that_see_it(pool, nonfinite, dims, impl):
    descriptor = BatchRaggedPrefillDescriptor(**RAGGED, **dims, causal=True, dtype="f16", window_left=70)
    plan = Plan.select(descriptor, Preference(backend="cuda", forbid=("wgmma_tile",) if impl == "mma_tile" else ()))
    assert plan.sku.impl == impl
    args = inputs.make_args(descriptor, seed=6, device="cuda", lengths=inputs.DrawnLengths(q=[200], kv=[200]))
    plan.run(args)
    want = args.o.clone()
    getattr(args, pool)[100, 1, 5] = nonfinite
    plan.run(args)
    touched = torch.zeros(200, 4, dtype=torch.bool, device="cuda")
    touched[100:171, 2:] = True  # rows 100 to 170 attend to key 100; heads 2 and 3 share its KV head
    assert torch.equal(args.o[~touched], want[~touched])
    assert bool((~args.o[touched].isfinite()).any(-1).all()) or pool == "k"


def test_with_a_single_key_the_output_is_its_value_bitwise():
    descriptor = decode_of(5)
    args = inputs.make_args(descriptor, seed=7, device="cuda", lengths=inputs.DrawnLengths(kv=[1] * 5))
    Plan.select(descriptor, CUDA).run(args)
    pages = args.kv_indices[:5].long()
    assert same_bits(args.o, args.v_data[pages, :, 0].repeat_interleave(4, dim=1))


@pytest.mark.parametrize("kv_len", [17, 512, 4096])
def test_every_key_is_visited_once(kv_len):
    """With q = 0 all weights are equal, so one-hot values count the visits of each key."""
    descriptor = decode_of(1)
    args = inputs.make_args(descriptor, seed=9, device="cuda", lengths=inputs.DrawnLengths(kv=[kv_len]))
    args.q.zero_()
    pages = args.kv_indices[: -(-kv_len // 16)].long()
    plan = Plan.select(descriptor, CUDA)
    for start in range(0, kv_len, 128):
        values = torch.zeros(len(pages) * 16, 128, device="cuda")
        stop = min(start + 128, kv_len)
        values[torch.arange(start, stop), torch.arange(stop - start)] = 1.0
        args.v_data[pages] = values.view(-1, 1, 16, 128).expand(-1, 2, -1, -1).to(torch.bfloat16)
        plan.run(args)
        visits = (args.o.float() * kv_len).round()
        assert bool((visits[..., : stop - start] == 1).all())
        assert bool((visits[..., stop - start :] == 0).all())


@pytest.mark.parametrize("dtype", ["bf16", "f8_e4m3", "f8_e5m2"])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_stages_are_not_refilled_before_they_are_read(head_dim, page_size, dtype):
    """A problem with many tiles on every SM, so that some threads and TMA loads run ahead of others."""
    pages = {"num_total_pages": 6000 // page_size, "page_size": page_size, "num_kv_heads": 8, "head_dim": head_dim}
    descriptor = BatchPagedPrefillDescriptor(
        batch_size=1,
        total_num_rows=2000,
        num_qo_heads=32,
        causal=True,
        paged_kv=PagedKvCacheDescriptor(**pages, dtype=dtype, layout="NHD"),
        q_dtype="bf16",
    )
    plan = Plan.select(descriptor, CUDA)
    args = inputs.make_args(descriptor, seed=12, device="cuda", lengths=inputs.DrawnLengths(q=[2000], kv=[6000]))
    for _ in range(3):
        args.o.fill_(math.nan)
        plan.run(args)
        assert numerics.check(descriptor, args, plan.sku, rows=100).worst <= 1


def test_each_of_5000_short_requests_uses_its_own_rows():
    descriptor = BatchRaggedPrefillDescriptor(
        batch_size=5000,
        total_num_rows=6000,
        total_kv_rows=9000,
        num_qo_heads=2,
        num_kv_heads=1,
        head_dim=64,
        causal=True,
        dtype="f16",
    )
    args = inputs.make_args(descriptor, seed=11, device="cuda")
    plan = Plan.select(descriptor, CUDA)
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku, rows=400).worst <= 1


def test_a_plan_for_another_architecture_is_refused_on_this_device():
    other = Target.parse("sm_80") if Target.current().sm_version != 80 else Target.parse("sm_90a")
    plan = Plan.select(decode_of(2), CUDA, target=other)
    with pytest.raises(errors.OpfacadeError):
        plan.run(inputs.make_args(decode_of(2), device="cuda"))
