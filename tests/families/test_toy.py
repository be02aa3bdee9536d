"""A family with its own files alone goes through every door, and a fault planted in what it overwrites is found."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Target, autotune, crosscheck, explain, load_descriptor, registry, verify
from opfacade.errors import ArgumentError, GuaranteeViolation
from opfacade.testing import guarded, inputs, numerics
from opfacade.testing.subject import Subject
from tests.families.mount import mounted
from tests.holding import hold

CPU = Target.cpu()


@pytest.fixture
def toy():
    with mounted("toy") as plans:
        yield plans


def problem(toy, **fields):
    return toy.ScaleDescriptor(**({"rows": 9, "width": 20, "dtype": "f16"} | fields))


def test_selects_runs_and_explains(toy):
    descriptor = problem(toy)
    assert explain(descriptor, target=CPU).chosen.name == "reference/torch"
    plan = toy.ScalePlan.select(descriptor, target=CPU)
    args = inputs.make_args(descriptor, seed=3)
    x = args.x.clone()
    assert plan.can_implement(args)
    plan.run(args)
    assert torch.equal(args.x, (x.float() * (args.gain * 0.5)).half())
    assert load_descriptor(descriptor.model_dump_json()) == descriptor


def test_conformance(toy):
    for descriptor in (*toy.EXAMPLES, problem(toy, rows=0)):
        hold(Subject(descriptor, "reference", "cpu"))


# -- faults ------------------------------------------------------------------------------------------------------------


def one_element(args):
    args.x[0, 3] += 1


def twice(args):
    args.x.mul_(2)


def nothing(args):
    """What was there before is left."""
    args.x.div_(args.gain * 0.5)


FAULTS = [one_element, twice, nothing]


@pytest.fixture(params=FAULTS, ids=lambda fault: fault.__name__)
def spoiled(toy, request, monkeypatch):
    """The default candidate, spoiled after each launch."""
    module = __import__("opfacade.backends.reference.toy", fromlist=["CANDIDATES"])
    first, *others = module.CANDIDATES

    def launcher(*given):
        right = first.launcher(*given)

        def launch(args, workspace):
            right(args, workspace)
            request.param(args)

        return launch

    monkeypatch.setattr(module, "CANDIDATES", (replace(first, launcher=launcher), *others))
    registry.variants_for.cache_clear()
    registry.candidates_for.cache_clear()
    return problem(toy)


def test_check_needs_what_was_overwritten(toy):
    descriptor = problem(toy)
    args = inputs.make_args(descriptor, seed=3)
    before, plan = numerics.snapshot(descriptor, args), Plan.select(descriptor, target=CPU)
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku, before=before).worst <= 1
    assert numerics.check(descriptor, args, plan.sku, before=tuple(before.values())).worst <= 1
    with pytest.raises(ArgumentError, match="OPF-G002") as caught:
        numerics.check(descriptor, args, plan.sku)
    assert "x expected its values" in str(caught.value)


def test_crosscheck_finds_a_fault(spoiled, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path))
    args = inputs.make_args(spoiled, seed=3)
    with pytest.raises(GuaranteeViolation, match="OPF-G001") as caught:
        Plan.select(spoiled, target=CPU).run(args)
    assert "x[" in str(caught.value)
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "0")
    assert crosscheck.replay(caught.value.dump).worst > 1


def test_tune_finds_a_fault(spoiled, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    (found,) = autotune.tune([spoiled], CPU, setup=autotune.Setup(timer=lambda call: call() or 1.0))
    default, other = (c.sku(spoiled, CPU).id for c in registry.variants_for(type(spoiled)))
    assert set(found.wrong) == {default}
    assert "OPF-T002" in found.wrong[default]
    assert [m.sku for m in found.row.measured] == [other]


def test_verify_finds_a_fault(spoiled):
    said = []
    record = verify.verify(quick=True, backend="reference", say=said.append, descriptors=[spoiled])
    [row] = record["skus"]
    assert not record["ok"]
    assert row["tried"]["bound"]["wrong"]


def test_without_a_fault_all_three_are_silent(toy, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    descriptor = problem(toy)
    Plan.select(descriptor, target=CPU).run(inputs.make_args(descriptor, seed=3))
    (found,) = autotune.tune([descriptor], CPU, setup=autotune.Setup(timer=lambda call: call() or 1.0))
    assert found.wrong == {}
    assert len(found.row.measured) == 2


def test_a_guarded_run_begins_each_of_its_runs_with_the_same_values(toy):
    descriptor = problem(toy)
    subject = Subject(descriptor, "reference", "cpu")
    args = subject.args(1)
    x = args.x.clone()
    assert guarded.run(subject, args) == []
    assert torch.equal(args.x, (x.float() * (args.gain * 0.5)).half())
