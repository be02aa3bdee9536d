"""Plans on the CPU whose kernel is a stub: the tests check which runs use the fast path of the host library, and which runs it
refuses."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Target, errors, telemetry
from opfacade import plan as plans
from opfacade.backends.cuda.host.direct import Direct, KernelCall
from opfacade.core.descriptor import operands_of
from opfacade.errors import Issue
from opfacade.testing import inputs
from tests.jit.host.test_contract import DECODE, HOST, NEEDED, aligned


class Launched:
    """A launcher with fast paths, like support.launcher; `long` lists the calls that got the full check."""

    def __init__(self, module, descriptor):
        self.module, self.descriptor, self.long, self.fails = module, descriptor, [], False

    def make(self, *_):
        def launch(args, workspace):
            for direct in made:
                direct.learn(args)
            self.long.append(args)

        def fast_paths(needed, operands):
            scalars = (1, -1.0 if self.fails else 1.0)
            kernel = KernelCall(self.module.run, scalars, needed > 0, needed, HOST)
            made.append(Direct(self.module, kernel, self.descriptor))
            return made[0].paths

        def refuse_unsound(needed, operands):
            return Direct(
                self.module, KernelCall(self.module.run, (1, 1.0), needed > 0, needed, HOST), self.descriptor
            ).refuse_unsound

        made = []
        launch.fast_paths, launch.refuse_unsound = fast_paths, refuse_unsound
        return launch


@pytest.fixture
def launched(module, monkeypatch):
    """A plan on the CPU whose kernel is the stub, and its launcher."""
    monkeypatch.setattr(plans, "_selected", {})
    plan = Plan.select(DECODE, target=Target.cpu())
    stub = Launched(module, DECODE)
    object.__setattr__(plan, "_candidate", replace(plan._candidate, launcher=stub.make))
    return plan, stub


def test_the_second_run_of_a_plan_uses_the_fast_path_and_is_counted(launched, module):
    plan, stub = launched
    runs, called = telemetry.stats(plan.sku.id).runs.value(), module.called()
    for seed in range(3):
        plan.run(inputs.make_args(DECODE, seed=seed))
    assert (len(stub.long), module.called() - called) == (1, 2)
    assert telemetry.stats(plan.sku.id).runs.value() - runs == 3
    assert plan.can_implement(inputs.make_args(DECODE, seed=4))
    assert module.called() - called == 2


def set_of(address):
    """The set of the extent cache to which an address belongs, as in storage_extents.h."""
    for _ in range(2):
        address = (address ^ address >> 32) * 0xD6E8FEB86659FD93 & (1 << 64) - 1
    return (address ^ address >> 32) % 1024


@pytest.mark.parametrize(("known", "new"), [("q", "o"), ("o", "q")])
def test_a_newly_registered_extent_is_not_evicted(launched, module, known, new):
    """One operand's registered extent is the oldest of its set, and another extent enters the set."""
    plan, stub = launched
    args = inputs.make_args(DECODE, seed=1)
    plan.run(args)
    buffer = torch.zeros(1 << 24, dtype=torch.uint8)
    base = buffer.data_ptr()
    sets = [set_of(base + at) for at in range(0, 1 << 24, 4096)]
    wanted = max(set(sets), key=sets.count)
    places = [4096 * i for i, one in enumerate(sets) if one == wanted]
    assert len(places) > 8

    def moved(tensor, place):
        return buffer[place : place + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)

    module.register_extents(*(number for place in places[:8] for number in (base + place, 4096)))
    plan.run(replace(args, **{known: moved(getattr(args, known), places[0]), new: moved(getattr(args, new), places[8])}))
    assert len(stub.long) == 1


def test_a_call_that_the_fast_path_refuses_gets_the_error_of_the_full_check(launched, module):
    plan, stub = launched
    args = inputs.make_args(DECODE, seed=1)
    plan.run(args)
    called = module.called()
    with pytest.raises(errors.ShapeError, match=r"q expected shape \[batch_size=3, .*, got \[2, 4, 16\]"):
        plan.run(replace(args, q=args.q[:2]))
    with pytest.raises(errors.AliasError):
        plan.run(replace(args, o=args.q))
    args.q.untyped_storage().resize_(16)
    with pytest.raises(errors.LayoutError, match="OPF-A024"):
        plan.run(args)
    assert (len(stub.long), module.called()) == (1, called)


def test_a_launch_that_fails_on_the_fast_path_is_repeated_by_the_full_check(launched):
    plan, stub = launched
    stub.fails = True
    args = inputs.make_args(DECODE, seed=1)
    plan.run(args)
    plan.run(args)
    assert len(stub.long) == 2


def test_a_subscriber_is_called_before_a_run(launched):
    plan, stub = launched
    args = inputs.make_args(DECODE, seed=1)
    plan.run(args)
    heard = []
    stop = telemetry.subscribe(lambda event: heard.append(len(stub.long)))
    plan.run(args)
    stop()
    assert heard == [1]
    assert len(stub.long) == 2


def test_a_wrapped_launcher_sees_each_call_after_the_check_of_the_host_library(launched, monkeypatch):
    monkeypatch.setenv("OPFACADE_TELEMETRY_SAMPLE", "1")
    plan, stub = launched
    in_full, issues = [], Plan._issues
    monkeypatch.setattr(Plan, "_issues", lambda plan, *call: in_full.append(call) or issues(plan, *call))
    bundles = [inputs.make_args(DECODE, seed=seed) for seed in range(4)]
    for args in bundles:
        plan.run(args)
    assert stub.long == bundles
    assert len(in_full) == 1
    with pytest.raises(errors.AliasError):
        plan.run(replace(bundles[0], o=bundles[0].q))
    assert len(stub.long) == 4


@pytest.fixture
def unchecked(module, monkeypatch):
    """A plan at level off whose kernel is the stub, and its launcher."""
    monkeypatch.setattr(plans, "_selected", {})
    monkeypatch.setenv("OPFACADE_VALIDATE", "off")
    plan = Plan.select(DECODE, target=Target.cpu())
    stub = Launched(module, DECODE)
    object.__setattr__(plan, "_candidate", replace(plan._candidate, launcher=stub.make))
    return plan, stub


def test_a_plan_with_validation_off_uses_no_fast_path(unchecked):
    plan, stub = unchecked
    for _ in range(2):
        plan.run(inputs.make_args(DECODE, seed=1))
    assert len(stub.long) == 2


WRONG = {
    "dtype": (lambda args: {"q": args.q.float()}, errors.DTypeError),
    "shape": (lambda args: {"q": args.q[:2]}, errors.ShapeError),
    "layout": (lambda args: {"kv_indices": args.kv_indices.repeat(2)[::2]}, errors.LayoutError),
    "address": (
        lambda args: {"q": torch.zeros(args.q.numel() + 1, dtype=args.q.dtype)[1:].view(args.q.shape)},
        errors.AlignmentError,
    ),
    "no tensor": (lambda args: {"o": None}, errors.ArgumentTypeError),
    "another device": (lambda args: {"lse": args.lse.to("meta")}, errors.DeviceMismatchError),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_plan_with_validation_off_refuses_tensors_that_its_binding_cannot_use(unchecked, name):
    plan, stub = unchecked
    args = inputs.make_args(DECODE, seed=1)
    change, error = WRONG[name]
    with pytest.raises(error, match=r"paged_decode\.run: "):
        plan.run(replace(args, **change(args)))
    with pytest.raises(errors.ArgumentTypeError, match="OPF-A000"):
        plan.run(None)
    assert stub.long == []
    plan.run(replace(args, o=args.q))  # overlaps are not checked
    assert len(stub.long) == 1


class Refusing:
    """A rule of a family that the host library does not know."""

    elsewhere = False

    def issues(self, name, tensor, first):
        return [Issue("OPF-X001", name, "another tensor", "this one", kind="LayoutError")]


def test_a_plan_with_validation_off_still_checks_the_rules_of_families(module):
    args, kernel = inputs.make_args(DECODE, seed=1), KernelCall(module.run, (2, 0.5), False, 0, HOST)
    Direct(module, kernel, DECODE).refuse_unsound(args, None)
    q = operands_of(DECODE)["q"]._replace(rules=Refusing())
    with pytest.raises(errors.LayoutError, match="OPF-X001"):
        Direct(module, kernel, DECODE, {**operands_of(DECODE), "q": q}).refuse_unsound(args, None)


def test_a_plan_with_validation_off_refuses_a_small_workspace(module, monkeypatch):
    direct = Direct(module, KernelCall(module.run, (2, 0.5), True, NEEDED, HOST), DECODE)
    args = inputs.make_args(DECODE, seed=1)
    direct.refuse_unsound(args, aligned(NEEDED))
    for workspace in (aligned(NEEDED)[:-1], aligned(NEEDED + 1)[1:], aligned(NEEDED).view(torch.int8)):
        with pytest.raises(errors.WorkspaceError):
            direct.refuse_unsound(args, workspace)
