"""Many concurrent threads give the results of a single thread; many runs and selects do not increase memory."""

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from opfacade import Plan, Preference, Target, telemetry
from opfacade import plan as plans
from opfacade.plans.attention import BatchPagedDecodeDescriptor, PagedKvCacheDescriptor
from opfacade.select.registry import examples
from opfacade.testing import inputs
from tests.support.problems import append, bits, decode, prefill, ragged

THREADS = 32
REFERENCE = Preference(backend="reference")
CUDA = Preference(backend="cuda")
MAKERS = (
    lambda seed: prefill([3, 1, 0], [9, 4, 2], seed=seed),
    lambda seed: decode([9, 0, 30], seed=seed, page_table="block"),
    lambda seed: ragged([2, 3], [4, 4], seed=seed),
    lambda seed: append([2, 3], [9, 6], seed=seed),
)
ALL = tuple(examples())


def outputs(args):
    names = ("o", "lse", "k_data", "v_data")
    return [bits(getattr(args, name)).clone() for name in names if getattr(args, name, None) is not None]


def work(problems, rounds):
    """Select, check and run; what was selected, and what was written each time."""
    seen = []
    for i in range(rounds):
        descriptor, args = problems[i % len(problems)]
        plan = Plan.select(descriptor, REFERENCE, Target.cpu())
        other = Plan.select(ALL[i % len(ALL)], target=Target.parse("sm_90a"))
        assert plan.can_implement(args)
        assert not plan.can_implement(None)
        plan.run(args)
        seen.append((plan.sku.id, other.sku.id, other.workspace_size, outputs(args)))
        telemetry.snapshot()
    return seen


def same(a, b):
    return a[:3] == b[:3] and all(torch.equal(x, y) for x, y in zip(a[3], b[3], strict=True))


def at_once(jobs):
    """Results of jobs that all start together, each in its own thread."""
    barrier = threading.Barrier(len(jobs))

    def start(job):
        barrier.wait(60)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [f.result(timeout=240) for f in [pool.submit(start, job) for job in jobs]]


def test_threads_give_what_one_alone_gives(monkeypatch):
    monkeypatch.setattr(plans, "_selected", {})
    rounds = 8
    mine = [[make(thread) for make in MAKERS] for thread in range(THREADS)]
    alone = [work(problems, rounds) for problems in mine]
    monkeypatch.setattr(plans, "_selected", {})
    telemetry.reset()
    together = at_once([lambda p=problems: work(p, rounds) for problems in mine])
    assert all(same(a, b) for x, y in zip(alone, together, strict=True) for a, b in zip(x, y, strict=True))
    counted = telemetry.snapshot()
    assert sum(c["runs"] for c in counted.values()) == THREADS * rounds
    assert sum(c["selects"] for c in counted.values()) == 2 * THREADS * rounds


def test_one_plan_serves_threads_with_calls_of_their_own():
    descriptor, _ = MAKERS[0](0)
    plan = Plan.select(descriptor, REFERENCE, Target.cpu())
    calls = [MAKERS[0](seed)[1] for seed in range(THREADS)]
    for args in calls:
        plan.run(args)
    alone = [outputs(args) for args in calls]

    def repeat(args):
        for _ in range(20):
            args.o.fill_(float("nan"))
            plan.run(args)
        return outputs(args)

    together = at_once([lambda a=args: repeat(a) for args in calls])
    assert all(torch.equal(x, y) for a, b in zip(alone, together, strict=True) for x, y in zip(a, b, strict=True))


def resident():
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def growth(step, count, rounds=5):
    """Bytes of resident memory per step: between the end of a first round and the minimum of the later rounds."""
    per_round = count // rounds
    marks = []
    for _ in range(rounds):
        for _ in range(per_round):
            step()
        gc.collect()
        marks.append(resident())
    return (min(marks[rounds // 2 :]) - marks[0]) / (per_round * (rounds // 2)), marks


def tiny():
    descriptor, args = decode([2], heads=2)
    return Plan.select(descriptor, REFERENCE, Target.cpu()), args


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=[pytest.mark.heavy, pytest.mark.timeout(1500)])])
def test_runs_leave_memory_as_it_was(count):
    plan, args = tiny()
    fresh = type(args)
    names = fresh.__slots__

    def step():
        plan.run(fresh(**{name: getattr(args, name) for name in names}))

    files, threads = descriptors(), threading.active_count()
    slope, marks = growth(step, count)
    assert slope * 1000 < 1024, marks
    assert (descriptors(), threading.active_count()) == (files, threads)


def numbered(i):
    cache = PagedKvCacheDescriptor(
        num_total_pages=1000 + i, page_size=16, num_kv_heads=2, head_dim=64, dtype="f16", layout="HND"
    )
    return BatchPagedDecodeDescriptor(batch_size=1 + i % 7, num_qo_heads=4, paged_kv=cache)


@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=[pytest.mark.heavy, pytest.mark.timeout(1500)])])
def test_distinct_selects_are_bounded(count, monkeypatch):
    """The select cache keeps its limit, and once it is full memory does not grow."""
    monkeypatch.setattr(plans, "_selected", {})
    target, n = Target.parse("sm_90a"), iter(range(10**9))
    slope, marks = growth(lambda: Plan.select(numbered(next(n)), target=target), count)
    assert len(plans._selected) == plans._MAX_CACHED
    assert (marks[-1] - marks[1]) / (count * 3 / 5) < 64, (slope, marks)


def test_a_plan_keeps_no_bundle():
    import weakref

    plan, args = tiny()
    held = []
    for width in range(1, 200):
        padded = torch.zeros(width + 8, *args.q.shape[1:], dtype=args.q.dtype)
        own = type(args)(
            **{n: getattr(args, n) for n in type(args).__slots__} | {"kv_indices": torch.zeros(width, dtype=torch.int32)}
        )
        held.append(weakref.ref(own))
        assert plan.can_implement(own)
        del own, padded
    gc.collect()
    assert not any(ref() for ref in held)


def gpu_problem(seed):
    cache = PagedKvCacheDescriptor(num_total_pages=200, page_size=16, num_kv_heads=2, head_dim=128, dtype="bf16", layout="HND")
    descriptor = BatchPagedDecodeDescriptor(batch_size=8, num_qo_heads=8, paged_kv=cache)
    return descriptor, inputs.make_args(descriptor, seed=seed, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("repeats", [300, pytest.param(10_000, marks=[pytest.mark.heavy, pytest.mark.timeout(1500)])])
def test_threads_on_streams_of_their_own_give_what_one_alone_gives(repeats):
    calls = [gpu_problem(seed) for seed in range(THREADS)]
    plan = Plan.select(calls[0][0], CUDA)
    for _, args in calls:
        plan.run(args)
    torch.cuda.synchronize()
    alone = [outputs(args) for _, args in calls]

    def repeat(args):
        differences = torch.zeros((), dtype=torch.int64, device="cuda")
        wanted = outputs(args)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
            for i in range(repeats):
                assert Plan.select(calls[0][0], CUDA) is plan
                assert plan.can_implement(args)
                args.o.fill_(float("nan"))
                plan.run(args, workspace if i % 2 else None)
                differences += (bits(args.o) != wanted[0]).sum()
            stream.synchronize()
            return int(differences)

    assert at_once([lambda a=args: repeat(a) for _, args in calls]) == [0] * THREADS
    assert all(
        torch.equal(x, y) for a, (_, args) in zip(alone, calls, strict=True) for x, y in zip(a, outputs(args), strict=True)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("level", ["metadata", "indices"])
@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=[pytest.mark.heavy, pytest.mark.timeout(1500)])])
def test_runs_on_a_gpu_leave_memory_as_it_was(monkeypatch, level, count):
    monkeypatch.setenv("OPFACADE_VALIDATE", level)
    monkeypatch.setattr(plans, "_selected", {})
    descriptor, args = gpu_problem(0)
    plan = Plan.select(descriptor, CUDA)
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
    done = iter(range(10**9))

    def step():
        plan.run(args, workspace)
        if next(done) % 500 == 0:
            torch.cuda.synchronize()

    for _ in range(1000):
        step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), descriptors(), threading.active_count()
    slope, marks = growth(step, count)
    torch.cuda.synchronize()
    assert (torch.cuda.memory_allocated(), descriptors(), threading.active_count()) == before
    assert slope * 1000 < 1024, marks
