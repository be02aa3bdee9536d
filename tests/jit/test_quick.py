"""csrc/host/replay_path.h and backends/cuda/quick.py: calls that the host library reads from the bundle and replays.

On the CPU: the device of the signature is the host, and the driver launches nothing and records its arguments.
"""

import gc
import random
import sys
import threading
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opfacade import Plan, Target, telemetry
from opfacade import plan as plans
from opfacade.backends.cuda.host import quick
from opfacade.backends.cuda.host.direct import Direct, KernelCall
from opfacade.core.candidate import NO_FAST_PATHS
from opfacade.core.descriptor import Args
from opfacade.plans.kv_cache import PagedKvAppendDescriptor
from opfacade.testing import inputs
from tests.jit.test_contract import CACHE, DECODE, HOST, NEEDED, OPS, STRANGE_WORKSPACES, aligned, disturbed, refused
from tests.support.fuzzing import small


class Path:
    """The replay path of a descriptor that has learned from a bundle."""

    def __init__(self, driver, module, descriptor, sound, needed=0, launches=1, scalar=2):
        self.driver, self.module = driver, module
        kernel = KernelCall(module.run, (scalar, 0.5, launches), needed > 0, needed, HOST)
        self.direct = Direct(module, kernel, descriptor)
        self.direct.learn(sound)

    def __call__(self, args, workspace=None):
        """Whether the replay path made the call."""
        before = self.driver.launches
        made = not self.direct.paths.replay(id(args), id(workspace))
        assert made or self.driver.launches == before
        return made

    def recorded(self, args, workspace=None):
        """The same as often as it takes to record a call, after the fast path registered all extents."""
        return self.direct.paths.fast(args, workspace, True) and self(args, workspace) and self(args, workspace)

    def afresh(self, args, workspace=None):
        """The launch of the fast path."""
        assert self.direct.paths.fast(args, workspace, True)
        return self.driver.last()


@pytest.fixture(scope="session")
def module(driver, beside_host):
    return beside_host(driver.binding, "called")


@pytest.fixture
def way(driver, module):
    return lambda descriptor, sound, **options: Path(driver, module, descriptor, sound, **options)


def same_but_for_the_call(a, b):
    return a._replace(call=0) == b._replace(call=0)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("needed", [0, NEEDED])
def test_a_call_is_made_again_as_it_was_without_filling_in_parameters(way, module, op, needed):
    descriptor = small(op, random.Random(3))
    args, workspace = inputs.make_args(descriptor, seed=1), aligned(needed) if needed else None
    call = way(descriptor, args, needed=needed)
    fresh = call.afresh(args, workspace)
    assert call(args, workspace)
    assert same_but_for_the_call(fresh, call.driver.last())
    assert call(args, workspace)
    kept, called = call.driver.last(), module.called()
    assert same_but_for_the_call(fresh, kept)
    for _ in range(3):
        before = call.driver.launches
        assert call(args, workspace)
        assert (call.driver.launches - before, module.called(), call.driver.last()) == (1, called, kept)


_alive = []


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(OPS), st.integers(0, 2**32))
def test_the_quick_way_refuses_whatever_the_full_check_refuses(driver, module, op, seed):
    rng = random.Random(seed)
    descriptor = small(op, rng)
    sound, workspace = inputs.make_args(descriptor, seed=seed), aligned(NEEDED)
    _alive.extend([sound, workspace])
    call = Path(driver, module, descriptor, sound, needed=NEEDED)
    assert call.recorded(sound, workspace)
    for _ in range(12):
        args, scratch = disturbed(rng, sound, workspace, _alive)
        bad = refused(descriptor, args, scratch, NEEDED) or scratch is None
        call.direct.paths.fast(args, scratch, False)
        for _ in range(3):  # made, kept, made again
            if call(args, scratch):
                made = driver.last()
                assert not bad, (descriptor, args, scratch)
                # Of tensors of integers the short way also asks what no guard need say.
                assert not call.direct.paths.fast(args, scratch, True) or same_but_for_the_call(driver.last(), made)
        assert call.recorded(sound, workspace)


IN_PLACE = {
    "smaller": lambda q: q.resize_(1, *q.shape[1:]),
    "strided": lambda q: q.as_strided_(q.shape, (q.stride(0), q.stride(1), 0)),
    "turned": lambda q: q.transpose_(0, 1),
    "with a gradient": lambda q: q.requires_grad_(),
    "without memory": lambda q: q.untyped_storage().resize_(16),
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


def test_memory_that_became_less_is_asked_for_again(way, module):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args)
    assert call.recorded(args)
    module.register_extents(args.q.data_ptr(), args.q.nbytes - 1)
    assert not call(args)
    assert call.recorded(args)


def test_a_tensor_that_moved_in_place_is_launched_where_it_is(way):
    args, other = (inputs.make_args(DECODE, seed=s) for s in (1, 2))
    call = way(DECODE, args)
    assert call.recorded(args)
    before = call.driver.last()
    args.q.data = other.q
    fresh = call.afresh(args)
    assert call(args)
    assert same_but_for_the_call(call.driver.last(), fresh)
    assert fresh.digest != before.digest


def test_more_calls_than_are_kept_are_each_made_as_they_are(way):
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


def test_a_hundred_layers_are_all_kept(way, module):
    first = inputs.make_args(DECODE, seed=1)
    bundles = [replace(first, k_data=first.k_data.clone(), v_data=first.v_data.clone()) for _ in range(100)]
    call = way(DECODE, bundles[0])
    assert all(call.recorded(args) for args in bundles)
    for args in bundles:
        call(args)
    called = module.called()
    for args in bundles:
        assert call(args)
    assert module.called() - called <= 5


def test_plans_keep_apart_what_they_made_of_the_same_tensors(way):
    args = inputs.make_args(DECODE, seed=1)
    ways = [way(DECODE, args, scalar=i) for i in range(3)]
    fresh = [call.afresh(args) for call in ways]
    assert len({one.digest for one in fresh}) == 3
    for _ in range(4):
        for call, wanted in zip(ways, fresh, strict=True):
            assert call(args)
            assert same_but_for_the_call(call.driver.last(), wanted)


def test_what_a_plan_kept_goes_with_it(way):
    """Another plan may come to lie where it was."""
    args = inputs.make_args(DECODE, seed=1)
    gc.freeze()  # what was there before is not looked through fifty times
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


def test_a_tensor_of_many_dimensions_is_refused_however_often_it_comes(way):
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
def test_what_is_no_tensor_like_those_learned_is_refused(way, name):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args)
    assert call.recorded(args)
    assert not call.recorded(replace(args, q=STRANGE[name](args.q)))
    assert not call(replace(args, q=STRANGE[name](args.q)))
    assert call(args)


@pytest.mark.parametrize("name", STRANGE_WORKSPACES)
def test_a_strange_workspace_is_refused(way, name):
    args, workspace = inputs.make_args(DECODE, seed=1), aligned(NEEDED)
    call = way(DECODE, args, needed=NEEDED)
    assert call.recorded(args, workspace)
    strange = STRANGE_WORKSPACES[name](workspace)
    assert not call.recorded(args, strange)
    assert not call(args, strange)
    assert call(args, workspace)


def test_memory_in_use_stays_known_however_much_comes_and_goes(way, module):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args)
    assert call.recorded(args)
    for page in range(20_000):
        module.register_extents(4096 * page, 64)
        assert page % 100 or call(args)
    for page in range(20_000):
        module.register_extents(4096 * page + 64, 64)
    assert not call(args)


def test_parameters_are_launched_where_they_were_learned(way):
    args = inputs.make_args(DECODE, seed=1)
    learned = replace(args, q=torch.nn.Parameter(args.q.clone(), requires_grad=False))
    call = way(DECODE, args)
    call.direct.learn(learned)
    assert call.recorded(learned)
    assert call.recorded(args)


@dataclass(frozen=True, slots=True, kw_only=True)
class Other(Args):
    q: object = None


def test_what_is_no_bundle_of_the_plan_is_refused(way):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args)
    assert call.recorded(args)
    unset = object.__new__(type(args))
    for strange in (None, 7, "text", (args.q,), Other(q=args.q), unset):
        assert not call(strange)
    assert not call(args, "text")
    assert not call(args, args.q)
    assert not call(replace(args, block_table=args.kv_indices))


def test_a_workspace_that_is_needed_is_not_made_here(way):
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


@pytest.mark.parametrize(("launches", "kept"), [(0, False), (1, True), (4, True), (5, False)])
def test_what_launched_nothing_or_much_is_made_anew(way, module, launches, kept):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args, launches=launches)
    assert call.recorded(args)
    called, before = module.called(), call.driver.launches
    assert call(args)
    assert module.called() - called == (not kept)
    assert call.driver.launches - before == launches
    assert not launches or call.driver.last().launch == launches - 1


def test_a_failed_launch_is_left_to_the_short_way(way):
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


def test_guards_are_asked_in_place_of_those_that_were_let_go(way):
    args = inputs.make_args(DECODE, seed=1)
    call = way(DECODE, args)
    kinds = []
    for i in range(6):  # more than are remembered
        named = [name for bit, name in enumerate(("q", "o", "lse")) if i + 1 >> bit & 1]
        changed = {name: torch.nn.Parameter(getattr(args, name), requires_grad=False) for name in named}
        kinds.append(replace(args, **changed))
        call.direct.learn(kinds[-1])
        gc.collect()
        assert call.recorded(kinds[-1])
    assert not call(kinds[0])
    assert not call(args)
    assert call(kinds[5])


def test_nothing_is_held_or_let_go_by_a_call(way):
    args, workspace = inputs.make_args(DECODE, seed=1), aligned(NEEDED)
    call = way(DECODE, args, needed=NEEDED)
    assert call.recorded(args, workspace)
    watched = (args, workspace, args.q, args.lse, call.direct._replay_guards[0])

    def counts():
        return [sys.getrefcount(one) for one in watched]

    before = counts()
    for _ in range(1000):
        assert call(args, workspace)
        assert not call(replace(args, q=args.o), workspace)
    assert counts() == before


def test_the_answer_of_a_guard_is_released(way):
    """Python 3.12 and later count no references to True, so this guard answers an object of its own."""
    args, answer = inputs.make_args(DECODE, seed=1), object()
    call = way(DECODE, args)
    assert call.recorded(args)

    def refuses(*_):
        return answer

    call.direct.paths.replay(id(refuses))  # called before the guard that was learned
    before = sys.getrefcount(answer)
    for _ in range(10):
        assert call(args)
    assert sys.getrefcount(answer) == before


def test_threads_share_a_quick_way(way):
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


def test_k_and_v_interleaved_in_one_buffer_are_written_the_quick_way(way):
    append = PagedKvAppendDescriptor(batch_size=1, total_num_rows=3, paged_kv=CACHE)
    args = inputs.make_args(append, seed=1)
    both = torch.zeros(8, 2, 2, 4, 16, dtype=torch.float16)
    call = way(append, args)
    assert call.recorded(replace(args, k_data=both[:, 0], v_data=both[:, 1]))
    assert not call.recorded(replace(args, k_data=both[:, 0], v_data=both[:, 0]))


@pytest.fixture
def played(module, driver, monkeypatch):
    """A plan on the CPU whose kernel is the fake driver's, and the bundles that came the long way."""
    monkeypatch.setattr(plans, "_selected", {})
    plan, long = Plan.select(DECODE, target=Target.cpu()), []

    def launcher(*_):
        def launch(args, workspace):
            for direct in made:
                direct.learn(args)
            long.append(args)

        def fast_paths(needed, operands):
            made.append(Direct(module, KernelCall(module.run, (1,), needed > 0, needed, HOST), DECODE))
            return made[0].paths

        made = []
        launch.fast_paths = fast_paths
        return launch

    object.__setattr__(plan, "_candidate", replace(plan._candidate, launcher=launcher))
    return plan, long


def test_runs_of_a_plan_go_the_quick_way_and_are_counted(played, driver, module):
    plan, long = played
    args = inputs.make_args(DECODE, seed=1)
    runs, before = telemetry.stats(plan.sku.id).runs.value(), driver.launches
    for _ in range(6):
        plan.run(args)
    assert telemetry.stats(plan.sku.id).runs.value() - runs == 6
    assert (len(long), driver.launches - before) == (1, 5)
    called = module.called()
    plan.run(args)
    assert module.called() == called


def test_who_listens_hears_of_a_quick_run_before_it_is_made(played, driver):
    plan, _ = played
    args = inputs.make_args(DECODE, seed=1)
    for _ in range(4):
        plan.run(args)
    heard, before = [], driver.launches
    stop = telemetry.subscribe(lambda event: heard.append(driver.launches - before))
    plan.run(args)
    stop()
    assert heard == [0]


@pytest.mark.parametrize("unknown", ["interpreter", "slots_of"])
def test_an_interpreter_that_lays_out_objects_otherwise_has_no_quick_way(driver, module, monkeypatch, unknown):
    monkeypatch.setattr(quick, unknown, lambda *_: None)
    args = inputs.make_args(DECODE, seed=1)
    call = Path(driver, module, DECODE, args)
    assert call.direct.paths.replay is NO_FAST_PATHS.replay
    assert not call.recorded(args)
    assert call.direct.paths.fast(args, None, True)


def test_tensors_that_cannot_be_lent_have_no_quick_way(driver, module, monkeypatch):
    known, table = quick.interpreter(), torch.zeros(16, dtype=torch.int64)  # of functions that are not there, of no version
    monkeypatch.setattr(quick, "interpreter", lambda: (*known[:-1], table.data_ptr()))
    assert Path(driver, module, DECODE, inputs.make_args(DECODE, seed=1)).direct.paths.replay is NO_FAST_PATHS.replay


def test_slots_are_found_where_they_are():
    places = quick.slots_of(Other, ("q",))
    marked = Other(q=object())
    assert quick._word_at(id(marked) + places[0]) == id(marked.q)


def test_a_binding_is_told_what_it_can_read(module):
    with pytest.raises(TypeError, match="OPF-C009"):
        module.replay(1, 2)
    with pytest.raises(ValueError, match="OPF-C031"):
        module.replay(*quick.interpreter(), id(Other), 1, 25, 1)
    with pytest.raises(ValueError, match="OPF-C031"):
        module.replay(*quick.interpreter(), id(Other), 2, 1, 1, 16)
