"""Plans whose runs are replayed, interpreters and tensors for which replay is unavailable, and the arguments of a binding."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Target, telemetry
from opfacade import plan as plans
from opfacade.backends.cuda.host import quick
from opfacade.backends.cuda.host.direct import Direct, KernelCall
from opfacade.core.candidate import NO_FAST_PATHS
from opfacade.errors import DeviceError
from opfacade.testing import inputs
from tests.jit.host.test_contract import DECODE, HOST
from tests.jit.quick_way import Other, ReplayPath


@pytest.fixture
def launches():
    return 1


@pytest.fixture
def played(stub, driver, monkeypatch, launches):
    """A plan on the CPU whose kernel is that of the fake driver, and the list of bundles that took the full check."""
    monkeypatch.setattr(plans, "_selected", {})
    plan, long = Plan.select(DECODE, target=Target.cpu()), []

    def launcher(*_):
        def launch(args, workspace):
            for direct in made:
                direct.learn(args)
            long.append(args)

        def fast_paths(needed, operands):
            made.append(Direct(stub, KernelCall(stub.run, (launches,), needed > 0, needed, HOST), DECODE))
            return made[0].paths

        made = []
        launch.fast_paths = fast_paths
        return launch

    object.__setattr__(plan, "_candidate", replace(plan._candidate, launcher=launcher))
    return plan, long


def test_runs_of_a_plan_are_replayed_and_counted(played, driver, stub):
    plan, long = played
    args = inputs.make_args(DECODE, seed=1)
    runs, before = telemetry.stats(plan.sku.id).runs.value(), driver.launches
    for _ in range(6):
        plan.run(args)
    assert telemetry.stats(plan.sku.id).runs.value() - runs == 6
    assert (len(long), driver.launches - before) == (1, 5)
    called = stub.called()
    plan.run(args)
    assert stub.called() == called


@pytest.mark.parametrize("launches", [2])
def test_a_run_whose_second_kernel_fails_raises_and_is_not_started_again(played, driver):
    plan, long = played
    args = inputs.make_args(DECODE, seed=1)
    plan.run(args)
    for _ in range(5):  # five runs: on the fast path, seen once, recorded, and replayed
        driver.fail_after(1)
        before = driver.launches
        with pytest.raises(DeviceError, match="OPF-R010") as raised:
            plan.run(args)
        driver.fail_after(-1)
        assert (driver.launches - before, len(long)) == (1, 1)
        assert plan.sku.id in str(raised.value)
        plan.run(args)
        assert (driver.launches - before, len(long)) == (3, 1)


def test_every_kind_of_run_increments_the_versions_of_the_outputs_only(played):
    plan, _ = played
    args = inputs.make_args(DECODE, seed=1)

    def writes():
        return [tensor._version for tensor in (args.o, args.lse, args.q, args.k_data)]

    made = writes()
    for n in range(1, 6):
        plan.run(args)
        assert writes() == [made[0] + n, made[1] + n, *made[2:]]


def test_a_subscriber_is_called_before_a_replayed_run(played, driver):
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
def test_an_interpreter_with_another_object_layout_has_no_replay(driver, stub, monkeypatch, unknown):
    monkeypatch.setattr(quick, unknown, lambda *_: None)
    args = inputs.make_args(DECODE, seed=1)
    call = ReplayPath(driver, stub, DECODE, args)
    assert call.direct.paths.replay is NO_FAST_PATHS.replay
    assert not call.recorded(args)
    assert call.direct.paths.fast(args, None, True)


def test_without_borrowed_tensors_there_is_no_replay(driver, stub, monkeypatch):
    # missing functions, and functions of an unknown version
    known, table = quick.interpreter(), torch.zeros(16, dtype=torch.int64)
    monkeypatch.setattr(quick, "interpreter", lambda: (*known[:-1], table.data_ptr()))
    assert ReplayPath(driver, stub, DECODE, inputs.make_args(DECODE, seed=1)).direct.paths.replay is NO_FAST_PATHS.replay


def test_the_offsets_of_slots_are_found():
    places = quick.slots_of(Other, ("q",))
    marked = Other(q=object())
    assert quick._word_at(id(marked) + places[0]) == id(marked.q)


def test_a_binding_refuses_arguments_that_it_cannot_read(stub):
    with pytest.raises(TypeError, match="OPF-C009"):
        stub.replay(1, 2)
    with pytest.raises(ValueError, match="OPF-C031"):
        stub.replay(*quick.interpreter(), id(Other), 1, 25, 1)
    with pytest.raises(ValueError, match="OPF-C031"):
        stub.replay(*quick.interpreter(), id(Other), 2, 1, 1, 16)
