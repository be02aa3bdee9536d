"""csrc/host/replay_path.h and backends/cuda/quick.py: the host library reads a call from the argument bundle and replays it.

These tests run on the CPU: the device of the signature is the host, and the driver only records its arguments.
"""

import gc
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opfacade.testing import inputs
from tests.jit.conftest import REGISTERED
from tests.jit.host.test_contract import DECODE, NEEDED, OPS, STRANGE_WORKSPACES, aligned, disturbed, refused
from tests.jit.quick_way import Other, ReplayPath
from tests.support.fuzzing import small


def same_but_for_the_call(a, b):
    return a._replace(call=0) == b._replace(call=0)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("needed", [0, NEEDED])
def test_a_repeated_call_is_replayed_without_setting_its_parameters_again(way, stub, op, needed):
    descriptor = small(op, random.Random(3))
    args, workspace = inputs.make_args(descriptor, seed=1), aligned(needed) if needed else None
    call = way(descriptor, args, needed=needed)
    fresh = call.afresh(args, workspace)
    assert call(args, workspace)
    assert same_but_for_the_call(fresh, call.driver.last())
    assert call(args, workspace)
    kept, called = call.driver.last(), stub.called()
    assert same_but_for_the_call(fresh, kept)
    for _ in range(3):
        before = call.driver.launches
        assert call(args, workspace)
        assert (call.driver.launches - before, stub.called(), call.driver.last()) == (1, called, kept)


_alive = []


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(OPS), st.integers(0, 2**32))
def test_replay_refuses_every_call_that_the_full_check_refuses(driver, stub, op, seed):
    rng = random.Random(seed)
    descriptor = small(op, rng)
    sound, workspace = inputs.make_args(descriptor, seed=seed), aligned(NEEDED)
    _alive.extend([sound, workspace])
    call = ReplayPath(driver, stub, descriptor, sound, needed=NEEDED)
    assert call.recorded(sound, workspace)
    for _ in range(12):
        args, scratch = disturbed(rng, sound, workspace, _alive)
        bad = refused(descriptor, args, scratch, NEEDED) or scratch is None
        call.direct.paths.fast(args, scratch, False)
        for _ in range(3):  # the first call runs, the second is recorded, the third is replayed
            if call(args, scratch):
                made = driver.last()
                assert not bad, (descriptor, args, scratch)
                # Replay also checks tensors of integers, which need no guard.
                assert not call.direct.paths.fast(args, scratch, True) or same_but_for_the_call(driver.last(), made)
        assert call.recorded(sound, workspace)


def without_memory(q):
    """A tensor at an address whose extent no test has registered: storage_extents.h explains why it would pass."""
    storage, kept = q.untyped_storage(), []
    storage.resize_(16)
    while q.data_ptr() in REGISTERED:
        storage.resize_(0)
        kept.append(torch.empty(16, dtype=torch.uint8))  # reuses the address that has just been freed
        storage.resize_(16)


IN_PLACE = {
    "smaller": lambda q: q.resize_(1, *q.shape[1:]),
    "strided": lambda q: q.as_strided_(q.shape, (q.stride(0), q.stride(1), 0)),
    "turned": lambda q: q.transpose_(0, 1),
    "with a gradient": lambda q: q.requires_grad_(),
    "without memory": without_memory,
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_tensor_changed_in_place_is_refused(way, name):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args)
    assert call.recorded(args)
    assert call(args)
    IN_PLACE[name](args.q)
    assert not call(args) or name == "without memory"
    assert not call.recorded(args)
    assert refused(DECODE, args, None, 0)


def test_shrunken_memory_is_checked_again(way, stub):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args)
    assert call.recorded(args)
    stub.register_extents(args.q.data_ptr(), args.q.nbytes - 1)
    assert not call(args)
    assert call.recorded(args)


def test_a_tensor_that_moved_in_place_is_launched_at_its_new_address(way):
    args, other = (inputs.make_args(DECODE, seed=s) for s in (1, 2))
    call = way(DECODE, args)
    assert call.recorded(args)
    before = call.driver.last()
    args.q.data = other.q
    fresh = call.afresh(args)
    assert call(args)
    assert same_but_for_the_call(call.driver.last(), fresh)
    assert fresh.digest != before.digest


def test_calls_beyond_the_capacity_are_launched_with_their_own_parameters(way):
    bundles = [inputs.make_args(DECODE, seed=1) for _ in range(400)]
    call = way(DECODE, bundles[0])
    fresh = [call.afresh(args) for args in bundles]
    assert len({one.digest for one in fresh}) == 400
    made = 0
    for args, wanted in [*zip(bundles, fresh, strict=True)] * 4:
        if call(args):
            made += 1
            assert same_but_for_the_call(call.driver.last(), wanted)
    assert made > 400


def test_the_calls_of_a_hundred_layers_are_all_recorded(way, stub):
    first = inputs.make_args(DECODE, seed=1)
    bundles = [replace(first, k_data=first.k_data.clone(), v_data=first.v_data.clone()) for _ in range(100)]
    call = way(DECODE, bundles[0])
    assert all(call.recorded(args) for args in bundles)
    for args in bundles:
        call(args)
    called = stub.called()
    for args in bundles:
        assert call(args)
    assert stub.called() - called <= 5


def test_plans_with_the_same_tensors_have_separate_records(way):
    args = inputs.make_args(DECODE, seed=1)
    ways = [way(DECODE, args, scalar=i) for i in range(3)]
    fresh = [call.afresh(args) for call in ways]
    assert len({one.digest for one in fresh}) == 3
    for _ in range(4):
        for call, wanted in zip(ways, fresh, strict=True):
            assert call(args)
            assert same_but_for_the_call(call.driver.last(), wanted)


def test_the_records_of_a_plan_are_deleted_with_it(way):
    """Another plan may be allocated at the same address."""
    args = inputs.make_args(DECODE, seed=1)
    gc.freeze()  # so that the collector does not search earlier objects fifty times
    try:
        for i in range(50):
            call = way(DECODE, args, scalar=i)
            wanted = call.afresh(args)
            for _ in range(3):
                assert call(args)
                assert same_but_for_the_call(call.driver.last(), wanted)
            del call
            gc.collect()
    finally:
        gc.unfreeze()


def test_a_tensor_with_too_many_dimensions_is_refused_at_every_call(way):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args)
    many = replace(args, q=args.q.view(3, 4, *[1] * 30, 16))
    call.direct.learn(many)
    for _ in range(4):
        assert not call(many)


def nested(like):
    return torch.nested.nested_tensor([torch.zeros(4, 16), torch.zeros(2, 16)], dtype=like.dtype)


class Odd(torch.Tensor):
    pass


STRANGE = {
    "nested": lambda q: nested(q),
    "negated": lambda q: torch._neg_view(q),
    "of a subclass": lambda q: q.clone().as_subclass(Odd),
    "with a gradient": lambda q: q.clone().requires_grad_(),
    "a parameter": lambda q: torch.nn.Parameter(q, requires_grad=False),
    "sparse": lambda q: q.clone().to_sparse(),
    "elsewhere": lambda q: torch.empty_like(q, device="meta"),
    "an array": lambda q: q.numpy(),
    "nothing": lambda q: None,
    "a number": lambda q: 3,
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_tensor_of_another_kind_than_the_learned_ones_is_refused(way, name):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args)
    assert call.recorded(args)
    assert not call.recorded(replace(args, q=STRANGE[name](args.q)))
    assert not call(replace(args, q=STRANGE[name](args.q)))
    assert call(args)


@pytest.mark.parametrize("name", STRANGE_WORKSPACES)
def test_an_unsuitable_workspace_is_refused(way, name):
    args, workspace = inputs.make_args(DECODE, seed=1), aligned(NEEDED)
    call = way(DECODE, args, needed=NEEDED)
    assert call.recorded(args, workspace)
    strange = STRANGE_WORKSPACES[name](workspace)
    assert not call.recorded(args, strange)
    assert not call(args, strange)
    assert call(args, workspace)


def test_the_extent_of_memory_in_use_is_not_evicted(way, stub):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args)
    assert call.recorded(args)
    for page in range(20_000):
        stub.register_extents(4096 * page, 64)
        assert page % 100 or call(args)
    for page in range(20_000):
        stub.register_extents(4096 * page + 64, 64)
    assert not call(args)


def test_parameters_are_launched_at_their_learned_address(way):
    args = inputs.make_args(DECODE, seed=1)
    learned = replace(args, q=torch.nn.Parameter(args.q.clone(), requires_grad=False))
    call = way(DECODE, args)
    call.direct.learn(learned)
    assert call.recorded(learned)
    assert call.recorded(args)


def test_parameters_that_need_a_gradient_are_replayed_under_no_grad_alone(way):
    args = inputs.make_args(DECODE, seed=1)
    args = replace(args, q=torch.nn.Parameter(args.q))
    with torch.no_grad():
        call = way(DECODE, args)
        assert call.recorded(args)
        with torch.enable_grad():
            assert not call(args)
        assert call(args)


def test_an_argument_bundle_of_another_type_is_refused(way):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args)
    assert call.recorded(args)
    unset = object.__new__(type(args))
    for strange in (None, 7, "text", (args.q,), Other(q=args.q), unset):
        assert not call(strange)
    assert not call(args, "text")
    assert not call(args, args.q)
    assert not call(replace(args, block_table=args.kv_indices))


def test_replay_does_not_allocate_a_required_workspace(way):
    args, workspace = inputs.make_args(DECODE, seed=1), aligned(NEEDED)
    call = way(DECODE, args, needed=NEEDED)
    assert call.recorded(args, workspace)
    assert not call(args)
    assert not call(args, workspace[:-1])
    assert not call(args, workspace.view(torch.int8))
    assert not call(args, aligned(NEEDED + 1)[1:])
    assert not call(replace(args, lse=workspace[:48].view(torch.float32).view(3, 4)), workspace)
    elsewhere = aligned(NEEDED)
    assert call.recorded(args, elsewhere)
    assert call.driver.last().digest != call.afresh(args, workspace).digest
