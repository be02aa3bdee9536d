"""Level indices on a GPU: the reports of the kernel and their time, with graphs and streams, and what it leaves unchanged."""

import gc
import os
import subprocess
import sys

import pytest
import torch

from opfacade import Plan, Preference
from opfacade import plan as plans
from opfacade.errors import IndexDataError, PlanStateError
from opfacade.plans.attention import BatchPagedDecodeDescriptor
from opfacade.testing import inputs
from opfacade.validation import device as channels
from tests.support.index_corruption import CACHE, PROBLEMS, same_bits
from tests.support.problems import append, cache, decode, prefill, ragged

pytestmark = pytest.mark.gpu
CUDA = Preference(backend="cuda")
POOL = cache(head_dim=64)


@pytest.fixture(autouse=True)
def _indices(monkeypatch):
    gc.collect()  # a graph of an earlier test that is freed during a capture makes the capture fail
    monkeypatch.setenv("OPFACADE_VALIDATE", "indices")
    monkeypatch.setattr(plans, "_selected", {})


def on_gpu(problem):
    descriptor, args = problem
    given = {name: getattr(args, name) for name in type(args).__slots__}
    return descriptor, type(args)(**{n: None if t is None else t.cuda() for n, t in given.items()})


def finding(plan):
    torch.cuda.synchronize()
    with pytest.raises(IndexDataError) as caught:
        plan.check()
    plan.check()  # told once
    return caught.value


WRONG = {  # row of the catalogue: problem, operand, position, value, (request, position, limit)
    "46": (lambda: prefill([2, 3], [9, 9], paged_kv=POOL), "q_indptr", 0, 1, (0, 0, "0")),
    "47": (lambda: decode([9, 9, 9], paged_kv=POOL), "kv_indptr", 2, 2, (1, 2, "at least 3")),
    "48": (lambda: decode([9, 9], paged_kv=POOL), "kv_indptr", 2, 90, (1, 2, "a value in [0, 8]")),
    "50": (lambda: decode([9, 9], paged_kv=POOL), "kv_indptr", 1, -5, (0, 1, "a value in [0, 8]")),
    "50 huge": (lambda: decode([9, 9], paged_kv=POOL), "kv_indptr", 1, 2**31 - 1, (0, 1, "a value in [0, 8]")),
    "51": (lambda: decode([9, 9], paged_kv=POOL), "kv_indices", 4, -1, (1, 4, "a page in [0, 24)")),
    "52": (lambda: decode([9, 9], paged_kv=POOL), "kv_indices", 1, 24, (0, 1, "a page in [0, 24)")),
    "53": (lambda: decode([9, 9], paged_kv=POOL), "last_page_len", 1, 0, (1, 1, "a length in [1, 4]")),
    "54": (lambda: decode([9, 9], paged_kv=POOL), "last_page_len", 0, 5, (0, 0, "a length in [1, 4]")),
    "58": (lambda: prefill([2, 3], [9, 9], paged_kv=POOL), "q_indptr", 2, 6, (1, 2, "a value in [0, 5]")),
    "58 ragged": (lambda: ragged([2, 3], [4, 4], dim=64), "q_indptr", 2, 6, (1, 2, "a value in [0, 5]")),
    "48 ragged": (lambda: ragged([2, 3], [4, 4], dim=64), "kv_indptr", 2, 10, (1, 2, "a value in [0, 9]")),
    "63": (lambda: append([4, 1], [9, 2], paged_kv=POOL), "append_indptr", 1, 1, (1, 2, "at most 2 new rows")),
    "63 total": (lambda: append([2, 3], [9, 6], paged_kv=POOL), "append_indptr", 2, 6, (1, 2, "a value in [0, 5]")),
    "74": (lambda: decode([9, 9], paged_kv=POOL, page_table="block"), "block_table", 2, 77, (0, 2, "a page in [0, 24)")),
    "75": (lambda: decode([9, 9], paged_kv=POOL, page_table="block"), "kv_lens", 1, 500, (1, 1, "a length in [0, 20]")),
    "75 negative": (lambda: decode([9, 9], paged_kv=POOL, page_table="block"), "kv_lens", 0, -1, (0, 0, "a length in [0, 20]")),
}


@pytest.mark.parametrize("row", WRONG)
def test_each_row_of_the_catalogue_is_reported_with_its_numbers(row):
    make, operand, position, value, (request, at, limit) = WRONG[row]
    descriptor, args = on_gpu(make())
    plan = Plan.select(descriptor, CUDA)
    plan.run(args)
    torch.cuda.synchronize()
    plan.check()
    getattr(args, operand).view(-1)[position] = value
    plan.run(args)
    error = finding(plan)
    told = value if row != "63" else 5
    assert (error.argument, error.request, error.position, error.value, error.limit) == (operand, request, at, told, limit)
    assert (error.asynchronous, error.call_id, error.code) == (True, 1, "OPF-V001")
    assert "found on the device during checked call 1" in str(error)


@pytest.mark.parametrize("descriptor", PROBLEMS, ids=lambda d: f"{d.op}-{getattr(d, 'page_table', 'ragged')}")
def test_sound_calls_report_nothing_and_give_the_same_bits_as_without(monkeypatch, descriptor):
    args = inputs.make_args(descriptor, seed=4, device="cuda")
    guarded = Plan.select(descriptor, CUDA)
    for _ in range(3):
        guarded.run(args)
    torch.cuda.synchronize()
    guarded.check()
    written = [name for name, spec in descriptor.operands().items() if spec.written]
    first = [getattr(args, name).clone() for name in written]
    monkeypatch.setenv("OPFACADE_VALIDATE", "metadata")
    monkeypatch.setattr(plans, "_selected", {})
    Plan.select(descriptor, CUDA).run(args)
    assert all(same_bits(a, getattr(args, name)) for a, name in zip(first, written, strict=True))


@pytest.mark.parametrize("next_call", ["run", "can_implement", "check"])
def test_the_next_host_call_tells(next_call):
    descriptor, args = on_gpu(decode([9, 9], paged_kv=POOL))
    plan = Plan.select(descriptor, CUDA)
    args.kv_indices[0] = -1
    plan.run(args)
    torch.cuda.synchronize()
    with pytest.raises(IndexDataError, match=r"kv_indices\[0\]"):
        getattr(plan, next_call)(*() if next_call == "check" else (args,))


def test_replays_of_a_graph_report_with_numbers_of_their_own():
    descriptor, args = on_gpu(decode([9, 9], paged_kv=POOL))
    plan = Plan.select(descriptor, CUDA)
    plan.run(args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(args)
    page = int(args.kv_indices[4])
    for call, value in enumerate((page, 99, page, -1, page), start=1):
        args.kv_indices[4] = value
        graph.replay()
        torch.cuda.synchronize()
        if value == page:
            plan.check()
        else:
            error = finding(plan)
            assert (error.value, error.position, error.call_id) == (value, 4, call)


def test_a_plan_that_was_not_loaded_is_refused_while_capturing():
    descriptor, args = on_gpu(decode([9, 9], paged_kv=POOL))
    plan = Plan.select(descriptor, CUDA)
    with pytest.raises(PlanStateError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        plan.run(args)


def test_full_refuses_a_capture_and_tells_at_once(monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    descriptor, args = on_gpu(decode([9, 9], paged_kv=POOL))
    plan = Plan.select(descriptor, CUDA)
    plan.run(args)
    with pytest.raises(PlanStateError, match="OPF-R004"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        plan.run(args)
    args.kv_indices[0] = -1
    args.o.fill_(7.0)
    with pytest.raises(IndexDataError) as caught:
        plan.run(args)
    assert not caught.value.asynchronous
    assert bool((args.o == 7.0).all())


def test_a_wrong_request_is_empty_and_its_neighbours_are_as_they_were():
    descriptor = BatchPagedDecodeDescriptor(batch_size=8, num_qo_heads=2, kv_split=64, paged_kv=CACHE)
    args = inputs.make_args(descriptor, seed=1, device="cuda", lengths=inputs.DrawnLengths(kv=[9] * 8))
    plan = Plan.select(descriptor, CUDA)
    plan.run(args)
    o, lse = args.o.clone(), args.lse.clone()
    args.kv_indices[4] = 1 << 30  # of request 1
    args.last_page_len[5] = 77
    plan.run(args)
    finding(plan)
    good = torch.tensor([0, 2, 3, 4, 6, 7], device="cuda")
    assert same_bits(args.o[good], o[good])
    assert same_bits(args.lse[good], lse[good])
    assert bool((args.o[[1, 5]] == 0).all())
    assert bool((args.lse[[1, 5]] == -torch.inf).all())


def test_more_findings_than_records_leave_the_first_ones():
    descriptor = BatchPagedDecodeDescriptor(batch_size=300, num_qo_heads=2, paged_kv=CACHE, page_table="block")
    args = inputs.make_args(descriptor, device="cuda")
    plan = Plan.select(descriptor, CUDA)
    args.kv_lens.fill_(-1)
    for _ in range(3):
        plan.run(args)
        torch.cuda.synchronize()
        with pytest.raises(IndexDataError) as caught:
            plan.check()
        assert len(caught.value.issues) == 20
        plan.check()


def test_streams_at_once_report_every_wrong_call():
    descriptor, args = on_gpu(decode([9, 9], paged_kv=POOL))
    plan = Plan.select(descriptor, CUDA)
    plan.run(args)
    bad = type(args)(**{n: getattr(args, n) for n in type(args).__slots__} | {"kv_indices": args.kv_indices + 24})
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    for stream in streams:
        with torch.cuda.stream(stream):
            plan._guard._judge(plan_check(plan), bad)
    assert len(finding(plan).issues) == 8


def plan_check(plan):
    """The check's own launcher: a run would raise earlier findings of the stream."""
    from opfacade import jit
    from opfacade.jit.spec import JitSpec

    return jit.load(JitSpec.of("index_check", "validation/index_check", plan.sku.arch)).run


def test_a_channel_outlives_its_plan_and_serves_again():
    import gc

    descriptor, args = on_gpu(decode([9, 9], paged_kv=POOL))
    plan = Plan.select(descriptor, CUDA)
    args.kv_indices[0] = -1
    plan.run(args)
    (channel,) = plan._guard._channels.known.values()
    plans._selected.clear()
    del plan
    gc.collect()
    spare = list(channels._spare[channel.device])
    assert channel in spare
    args.kv_indices[0] = 1
    again = Plan.select(descriptor, CUDA)
    again.run(args)
    assert set(again._guard._channels.known.values()) <= set(spare)
    torch.cuda.synchronize()
    again.check()  # findings of the deleted plan are discarded


@pytest.mark.heavy
@pytest.mark.timeout(580)
def test_5000_random_corruptions():
    env = {**os.environ, "OPFACADE_VALIDATE": "indices"}
    command = [sys.executable, "-m", "tests.support.gpu_corruptions", "--count", "5000"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 not reported" in done.stdout
