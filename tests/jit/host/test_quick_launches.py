"""Replayed calls with failing launches, released guards, and several threads: see test_quick.py."""

import gc
import sys
import threading
from dataclasses import replace

import pytest
import torch
import tvm_ffi

from opfacade.core.launch_errors import BegunError
from opfacade.plans.kv_cache import PagedKvAppendDescriptor
from opfacade.testing import inputs
from tests.jit.fake_cuda import tensor
from tests.jit.host.test_contract import CACHE, DECODE, NEEDED, aligned, refused


@pytest.mark.parametrize(("launches", "kept"), [(0, False), (1, True), (4, True), (5, False)])
def test_calls_with_no_launch_or_too_many_launches_are_not_replayed(way, stub, launches, kept):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args, launches=launches)
    assert call.recorded(args)
    called, before = stub.called(), call.driver.launches
    assert call(args)
    assert stub.called() - called == (not kept)
    assert call.driver.launches - before == launches
    assert not launches or call.driver.last().launch == launches - 1


def test_a_launch_uses_the_stream_of_its_device(driver, stub):
    """The streams are those of tvm-ffi, which are torch's streams; each device has its own."""
    streams = [(0, 0x1230), (1, 0x4560), (0, 0x7890)]
    for device, stream in streams:
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", device), stream):
            stub.run(tensor([3], device=device), 1)
        assert driver.stream == stream


def test_a_failed_replay_is_left_to_the_fast_path(way):
    args, other = (inputs.make_args(DECODE, seed=s) for s in (1, 2))
    call = way(DECODE, args)
    assert call.recorded(args)
    call.direct.paths.fast(other, None, False)
    call.driver.fail(True)
    try:
        assert not call(args)
        assert not call(other)
        assert not call.direct.paths.fast(args, None, True)
    finally:
        call.driver.fail(False)
    assert call(args)
    assert call(other)


@pytest.mark.parametrize(("launches", "later"), [(2, 1), (4, 1), (4, 3)])
def test_a_call_whose_later_launch_fails_is_not_begun_again(way, launches, later):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args, launches=launches)
    ways = [lambda: call.direct.paths.fast(args, None, True), *[lambda: call.direct.paths.replay(id(args), id(None))] * 4]
    call.direct.paths.fast(args, None, True)
    for make in ways:  # five calls: on the fast path, seen once, recorded with a failure, recorded, replayed
        before = call.driver.launches
        call.driver.fail_after(later)
        with pytest.raises(BegunError):
            make()
        call.driver.fail_after(-1)
        assert call.driver.launches - before == later
        make()
        assert call.driver.launches - before == later + launches


def test_a_recording_is_of_the_tensors_that_were_launched(way):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args)
    assert call.direct.paths.fast(args, None, True)
    assert call(args)
    call.driver.during_launch(lambda: args.q.transpose_(0, 1))
    assert call(args)  # recorded
    assert refused(DECODE, args, None, 0)
    assert not call(args)
    args.q.transpose_(0, 1)
    called = call.module.called()
    assert call(args)
    assert call.module.called() == called  # the record contains the earlier form of q


def test_a_guard_is_held_before_the_host_library_calls_it_and_after_an_interrupt(way):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args)
    replay, held = call.direct.paths.replay, []

    def interrupted(guard):
        held.append(guard in call.direct._replay_guards)
        replay(guard)
        raise KeyboardInterrupt

    call.direct.paths = call.direct.paths._replace(replay=interrupted)
    learned = replace(args, q=torch.nn.Parameter(args.q.clone(), requires_grad=False))
    with pytest.raises(KeyboardInterrupt):
        call.direct.learn(learned)
    call.direct.paths = call.direct.paths._replace(replay=replay)
    assert held == [True]
    assert len(call.direct._replay_guards) == 2
    for name in ("o", "lse"):
        call.direct.learn(replace(args, **{name: torch.nn.Parameter(getattr(args, name), requires_grad=False)}))
    assert call.recorded(args)  # the first of four guards is still called


def test_new_guards_replace_released_ones(way):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args)
    kinds = []
    for i in range(6):  # more guards than can be stored
        named = [name for bit, name in enumerate(("q", "o", "lse")) if i + 1 >> bit & 1]
        changed = {name: torch.nn.Parameter(getattr(args, name), requires_grad=False) for name in named}
        kinds.append(replace(args, **changed))
        call.direct.learn(kinds[-1])
        gc.collect()
        assert call.recorded(kinds[-1])
    assert not call(kinds[0])
    assert not call(args)
    assert call(kinds[5])


def test_a_call_changes_no_reference_count(way):
    args, workspace = inputs.make_args(DECODE, seed=1), aligned(NEEDED)
    call = way(DECODE, args, needed=NEEDED)
    assert call.recorded(args, workspace)
    watched = (args, workspace, args.q, args.lse, *call.direct._replay_guards.values())

    def counts():
        return [sys.getrefcount(one) for one in watched]

    before = counts()
    for _ in range(1000):
        assert call(args, workspace)
        assert not call(replace(args, q=args.o), workspace)
    assert counts() == before


def test_the_object_that_a_guard_returns_is_released(way):
    """Python 3.12 and later do not count references to True, so this guard returns another object."""
    args, answer = inputs.make_args(DECODE, seed=1), object()
    call = way(DECODE, args)
    assert call.recorded(args)

    def refuses(*_):
        return answer

    call.direct.paths.replay(id(refuses))  # called before the learned guard
    before = sys.getrefcount(answer)
    for _ in range(10):
        assert call(args)
    assert sys.getrefcount(answer) == before


def test_threads_share_a_replay_path(way):
    bundles = [inputs.make_args(DECODE, seed=s) for s in range(8)]
    call = way(DECODE, bundles[0])
    assert all(call.recorded(args) for args in bundles)
    before, failures = call.driver.launches, []

    def work(first):
        for i in range(500):
            if call.direct.paths.replay(id(bundles[(first + i) % 8]), id(None)):
                failures.append(i)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert call.driver.launches > before


def test_k_and_v_interleaved_in_one_buffer_are_replayed(way):
    append = PagedKvAppendDescriptor(batch_size=1, total_num_rows=3, paged_kv=CACHE)
    args = inputs.make_args(append, seed=1)
    both = torch.zeros(8, 2, 2, 4, 16, dtype=torch.float16)
    call = way(append, args)
    assert call.recorded(replace(args, k_data=both[:, 0], v_data=both[:, 1]))
    assert not call.recorded(replace(args, k_data=both[:, 0], v_data=both[:, 0]))
