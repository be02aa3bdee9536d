"""The toy family passes every tool with only its own files, and each tool detects a fault in an overwritten operand."""

import random
from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Target, explain, load_descriptor, record
from opfacade.bench import Options, measure
from opfacade.errors import ArgumentError, GuaranteeViolation, OpfacadeError
from opfacade.select import registry
from opfacade.select.decision import tuning_key
from opfacade.testing import determinism, guarded, inputs, numerics
from opfacade.testing.bits import bits
from opfacade.testing.subject import Subject
from opfacade.tools import verify
from opfacade.tools.crosscheck import replay as replay_crosscheck
from opfacade.tools.replay import replay
from opfacade.tools.workload import Work, read
from opfacade.tune import tune as autotune
from opfacade.tune.measure import MeasureEffort
from tests.families.mount import mounted
from tests.support.assert_guarantee import hold
from tests.support.fuzzing import small, spoiled_args

CPU = Target.cpu()


@pytest.fixture
def toy():
    with mounted("toy") as plans:
        yield plans


def problem(toy, **fields):
    return toy.ScaleDescriptor(**({"rows": 9, "width": 20, "dtype": "f16"} | fields))


def test_select_run_and_explain(toy):
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


def test_tuning_keys_group_similar_sizes(toy):
    keys = [tuning_key(problem(toy, rows=rows)) for rows in (9, 16, 17)]
    assert keys[0] == keys[1] != keys[2]
    assert tuning_key(problem(toy, width=21)) != keys[0]


@pytest.mark.parametrize("name", ["x", "gain"])
def test_validation_level_full_checks_the_values_of_each_operand(toy, monkeypatch, name):
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    descriptor = problem(toy)
    args = inputs.make_args(descriptor, seed=3)
    plan = Plan.select(descriptor, target=CPU)
    plan.run(args)
    getattr(args, name).view(-1)[5] = float("nan")
    before = args.x.clone()
    with pytest.raises(ArgumentError, match="OPF-V003") as caught:
        plan.run(args)
    assert f"{name}[{'0, 5' if name == 'x' else 5}]" in str(caught.value)
    assert torch.equal(bits(args.x), bits(before))


def test_the_benchmark_labels_and_times_the_op(toy):
    found = measure([Work(problem(toy))], Options(effort=MeasureEffort(least=3, most=4), peers=None, variants=True))
    assert found["ok"]
    assert [row["impl"] for row in found["rows"]][:2] == ["opfacade reference/torch", "opfacade reference/torch[rows]"]
    for row in found["rows"][:2]:
        assert row["name"] == "scale rows=9 width=20 f16"
        assert row["bytes"] == 2 * 9 * 20 * 2 + 20 * 4 + 9 * 4
        assert row["us"] > 0
        assert 0 < row["error_over_bound"] <= 1
    assert all("declined" in row for row in found["rows"][2:])


def test_a_recorded_trace_can_be_read_again(toy, tmp_path):
    descriptor, path = problem(toy), tmp_path / "trace.jsonl"
    with record(path, lengths=True):
        Plan.select(descriptor, target=CPU).run(inputs.make_args(descriptor, seed=3))
    (work,) = read(path.read_text())
    assert (work.descriptor, work.runs, work.lengths) == (descriptor, 1, None)


def test_a_dumped_call_is_replayed(toy, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_LOG", "dump")
    monkeypatch.setenv("OPFACADE_LOG_DEST", str(tmp_path / "log"))
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path / "dumps"))
    descriptor = problem(toy)
    Plan.select(descriptor, target=CPU).run(inputs.make_args(descriptor, seed=3))
    monkeypatch.delenv("OPFACADE_LOG")
    (again,) = replay(tmp_path / "dumps")
    assert (again.same, again.sound) == (True, True)


def test_verify_checks_the_bound_repeatability_and_batch_invariance(toy):
    found = verify.verify(quick=True, backend="reference", say=lambda text: None, descriptors=[problem(toy)])
    [row] = found["skus"]
    assert found["ok"]
    assert set(row["tried"]) == {"bound", "run_to_run", "batch_invariance"}
    assert row["tried"]["batch_invariance"]["compared"] >= 6 * 4


def test_verify_draws_random_problems(toy):
    found = verify.verify(op="scale", quick=True, backend="reference", say=lambda text: None)
    assert found["ok"]
    assert [(row["op"], row["problems"]) for row in found["random_problems"]] == [("scale", verify.QUICK_CPU.problems)]
    assert len(found["skus"]) == 2


def test_fuzzed_calls_give_a_right_result_or_an_opfacade_error(toy):
    """The calls use random problems and corrupted operands."""
    right = refused = 0
    for seed in range(60):
        rng = random.Random(seed)
        descriptor = small("scale", rng)
        plan, args = Plan.select(descriptor, target=CPU), inputs.make_args(descriptor, seed=seed)
        if seed % 2:
            args = spoiled_args(rng, args, 1)
        sound = bool(plan.can_implement(args))
        before = numerics.snapshot(descriptor, args) if sound else None
        try:
            plan.run(args)
        except OpfacadeError:
            refused += 1
            continue
        right += 1
        assert numerics.check(descriptor, args, plan.sku, before=before).worst <= 1
    assert right > 30
    assert refused > 10


def test_the_check_of_batch_invariance_detects_a_dependence_on_the_batch(toy):
    class SeesTheBatch(Subject):
        def run(self, args, workspace=None):
            super().run(args, workspace)
            if self.descriptor.rows > 3:
                args.x[-1] += 1

    subject = SeesTheBatch(problem(toy), "reference", "cpu")
    shown = determinism.batch_invariance(subject, determinism.QUICK, seed=1)
    assert 0 < shown.different <= shown.runs


# Faults


def one_element(args):
    args.x[0, 3] += 1


def twice(args):
    args.x.mul_(2)


def nothing(args):
    """Leaves the previous content, as if nothing had been launched."""
    args.x.div_(args.gain * 0.5)


FAULTS = [one_element, twice, nothing]


@pytest.fixture(params=FAULTS, ids=lambda fault: fault.__name__)
def spoiled(toy, request, monkeypatch):
    """Replaces the default candidate by one that corrupts the operands after each launch."""
    module = __import__("opfacade.backends.reference.toy", fromlist=["CANDIDATES"])
    first, *others = module.CANDIDATES

    def launcher(*given):
        right = first.launcher(*given)

        def launch(args, workspace):
            right(args, workspace)
            request.param(args)

        return launch

    monkeypatch.setattr(module, "CANDIDATES", (replace(first, launcher=launcher), *others))
    registry.configs_for.cache_clear()
    registry.candidates_for.cache_clear()
    return problem(toy)


def test_the_error_check_needs_the_values_before_an_in_place_run(toy):
    descriptor = problem(toy)
    args = inputs.make_args(descriptor, seed=3)
    before, plan = numerics.snapshot(descriptor, args), Plan.select(descriptor, target=CPU)
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku, before=before).worst <= 1
    assert numerics.check(descriptor, args, plan.sku, before=tuple(before.values())).worst <= 1
    with pytest.raises(ArgumentError, match="OPF-G002") as caught:
        numerics.check(descriptor, args, plan.sku)
    assert "x expected its values" in str(caught.value)


def test_crosscheck_detects_a_fault(spoiled, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path))
    args = inputs.make_args(spoiled, seed=3)
    with pytest.raises(GuaranteeViolation, match="OPF-G001") as caught:
        Plan.select(spoiled, target=CPU).run(args)
    assert "x[" in str(caught.value)
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "0")
    assert replay_crosscheck(caught.value.dump).worst > 1


def test_tune_detects_a_fault(spoiled, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    (found,) = autotune.tune([spoiled], CPU, setup=autotune.Setup(timer=lambda call: call() or 1.0))
    default, other = (c.sku(spoiled, CPU).id for c in registry.configs_for(type(spoiled)))
    assert set(found.wrong) == {default}
    assert "OPF-T002" in found.wrong[default]
    assert [m.sku for m in found.row.measured] == [other]


def test_verify_detects_a_fault(spoiled):
    said = []
    found = verify.verify(quick=True, backend="reference", say=said.append, descriptors=[spoiled])
    [row] = found["skus"]
    assert not found["ok"]
    assert row["tried"]["bound"]["wrong"]


def test_crosscheck_tune_and_verify_report_nothing_without_a_fault(toy, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    descriptor = problem(toy)
    Plan.select(descriptor, target=CPU).run(inputs.make_args(descriptor, seed=3))
    (found,) = autotune.tune([descriptor], CPU, setup=autotune.Setup(timer=lambda call: call() or 1.0))
    assert found.wrong == {}
    assert len(found.row.measured) == 2


def test_a_guarded_run_restores_overwritten_operands_before_each_of_its_runs(toy):
    descriptor = problem(toy)
    subject = Subject(descriptor, "reference", "cpu")
    args = subject.args(1)
    x = args.x.clone()
    assert guarded.run(subject, args) == []
    assert torch.equal(args.x, (x.float() * (args.gain * 0.5)).half())
