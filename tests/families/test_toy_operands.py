"""Operands of rank 0, of any strides, in place, with bounds on their values and with a count of valid rows, in every tool."""

import random
from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Target, explain, load_descriptor, record
from opfacade.bench import Options, measure
from opfacade.errors import ArgumentError, GuaranteeViolation, IndexDataError, OpfacadeError
from opfacade.select import registry
from opfacade.testing import guarded, inputs, numerics
from opfacade.testing.bits import same_bits
from opfacade.testing.harness import harness_for
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
FORMS = {"plain": {}, "in-place": {"in_place": True}, "counted": {"num_valid": True}}
FORMS["both"] = FORMS["in-place"] | FORMS["counted"]


@pytest.fixture
def toy():
    with mounted("toy") as plans:
        yield plans


@pytest.fixture(params=FORMS)
def problem(toy, request):
    return toy.PickDescriptor(rows=9, width=20, entries=5, dtype="f16", **FORMS[request.param])


def counted(toy, **more):
    return toy.PickDescriptor(**{"rows": 9, "width": 20, "entries": 5, "dtype": "f16", "num_valid": True} | more)


def wanted(args):
    return (args.x.float() + args.gain * args.table[args.index.clamp(0, len(args.table) - 1).long()].float()).half()


def strided(args):
    """The same call with a transposed and strided x, one shared table entry, and a gain that is an element of a
    larger tensor."""
    x = torch.zeros(40, 18, dtype=args.x.dtype).t()[::2, ::2].copy_(args.x)
    table = args.table[:1].expand(args.table.shape)
    return replace(args, x=x, table=table, gain=torch.tensor([7.0, float(args.gain)])[1])


def test_select_run_and_explain(problem):
    assert explain(problem, target=CPU).chosen.name == "reference/torch"
    assert load_descriptor(problem.model_dump_json()) == problem
    for make in (lambda args: args, strided):
        args = make(inputs.make_args(problem, seed=3))
        want, before = wanted(args), args.x.clone()
        valid = 9 if args.num_valid is None else int(args.num_valid)
        plan = Plan.select(problem, target=CPU)
        assert plan.can_implement(args)
        plan.run(args)
        out = args.x if problem.in_place else args.out
        assert same_bits(out[:valid], want[:valid])
        assert same_bits(args.x[valid:], before[valid:])
        assert problem.in_place or bool(out[valid:].isnan().all())


REFUSED = {
    "a gain of rank 1": ("plain", lambda a: {"gain": a.gain[None]}, "OPF-A011"),
    "a gain of f64": ("plain", lambda a: {"gain": a.gain.double()}, "OPF-A010"),
    "entries whose elements are one": ("plain", lambda a: {"table": a.table[:, :1].expand(5, 20)}, "OPF-A021"),
    "an expanded output": ("plain", lambda a: {"out": a.out[:1].expand(9, 20)}, "OPF-A022"),
    "an expanded x in place": ("in-place", lambda a: {"x": a.x[:1].expand(9, 20)}, "OPF-A022"),
    "the input as output": ("plain", lambda a: {"out": a.x}, "OPF-A040"),
    "an output in place": ("in-place", lambda a: {"out": a.x}, "OPF-A001"),
    "a list": ("plain", lambda a: {"x": [a.x]}, "OPF-A007"),
    "a count where there is none": ("plain", lambda a: {"num_valid": torch.tensor([3], dtype=torch.int32)}, "OPF-A001"),
    "no count": ("counted", lambda a: {"num_valid": None}, "OPF-A002"),
    "a count of rank 0": ("counted", lambda a: {"num_valid": a.num_valid[0]}, "OPF-A011"),
    "a count of i64": ("counted", lambda a: {"num_valid": a.num_valid.long()}, "OPF-A010"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_can_implement_refuses_each_wrong_operand(toy, name):
    form, change, code = REFUSED[name]
    descriptor = toy.PickDescriptor(rows=9, width=20, entries=5, dtype="f16", **FORMS[form])
    args = inputs.make_args(descriptor, seed=3)
    verdict = Plan.select(descriptor, target=CPU).can_implement(replace(args, **change(args)))
    assert [issue.code for issue in verdict.issues] == [code]
    assert code != "OPF-A040" or verdict.issues[0].hint == "Select with in_place=True to overwrite x."


@pytest.mark.parametrize("level", ["indices", "full"])
@pytest.mark.parametrize(("value", "place"), [(5, 2), (-1, 0), (2**31 - 1, 8)])
def test_validation_checks_indices(toy, monkeypatch, level, value, place):
    monkeypatch.setenv("OPFACADE_VALIDATE", level)
    descriptor = counted(toy)
    args = inputs.make_args(descriptor, seed=3, lengths=inputs.DrawnLengths(valid=9))
    plan = Plan.select(descriptor, target=CPU)
    plan.run(args)
    args.index[place] = value
    args.out.fill_(7)
    with pytest.raises(IndexDataError, match="OPF-V001") as caught:
        plan.run(args)
    assert f"index[{place}] expected a value in [0, 5), got {value}" in str(caught.value)
    assert (caught.value.argument, caught.value.position, caught.value.value) == ("index", place, value)
    assert bool((args.out == 7).all())
    args.num_valid.fill_(place)  # indices of rows past num_valid may have any value
    plan.run(args)


@pytest.mark.parametrize("level", ["indices", "full"])
@pytest.mark.parametrize("count", [-1, 10, 2**31 - 1])
def test_validation_checks_num_valid(toy, monkeypatch, level, count):
    monkeypatch.setenv("OPFACADE_VALIDATE", level)
    descriptor = counted(toy)
    args = inputs.make_args(descriptor, seed=3)
    args.num_valid.fill_(count)
    with pytest.raises(IndexDataError, match=rf"num_valid\[0\] expected a value in \[0, 10\), got {count}\."):
        Plan.select(descriptor, target=CPU).run(args)


def test_validation_level_full_checks_only_valid_rows(toy, monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    descriptor = counted(toy)
    args = inputs.make_args(descriptor, seed=3, lengths=inputs.DrawnLengths(valid=6))
    assert bool(args.x[6:].isnan().all())
    plan = Plan.select(descriptor, target=CPU)
    plan.run(args)
    args.x[5, 3] = float("nan")
    with pytest.raises(ArgumentError, match=r"x\[5, 3\] expected finite values"):
        plan.run(args)
    args.x[5, 3] = 0
    args.gain.fill_(float("inf"))
    with pytest.raises(ArgumentError, match=r"gain\[\] expected finite values"):
        plan.run(args)


def test_conformance(problem):
    for rows in (9, 0, 1):
        hold(Subject(type(problem).model_validate(problem.model_dump() | {"rows": rows}), "reference", "cpu"))
        hold(Subject(problem, "reference", "cpu"), interleaved=True)


def test_verify_bench_and_record(problem, tmp_path):
    found = verify.verify(quick=True, backend="reference", say=lambda text: None, descriptors=[problem])
    [row] = found["skus"]
    assert found["ok"]
    assert set(row["tried"]) == {"bound", "run_to_run", "batch_invariance"}
    timed = measure([Work(problem)], Options(effort=MeasureEffort(least=3, most=4), peers=None))
    assert timed["ok"]
    assert 0 < timed["rows"][0]["error_over_bound"] <= 1
    with record(tmp_path / "trace.jsonl", lengths=True):
        Plan.select(problem, target=CPU).run(inputs.make_args(problem, seed=3))
    (work,) = read((tmp_path / "trace.jsonl").read_text())
    assert (work.descriptor, work.runs) == (problem, 1)


def test_a_dumped_call_is_replayed(problem, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_LOG", "dump")
    monkeypatch.setenv("OPFACADE_LOG_DEST", str(tmp_path / "log"))
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path / "dumps"))
    Plan.select(problem, target=CPU).run(strided(inputs.make_args(problem, seed=3)))
    monkeypatch.delenv("OPFACADE_LOG")
    (again,) = replay(tmp_path / "dumps")
    assert (again.same, again.sound) == (True, True)


def test_crosscheck_and_tune_report_nothing_without_a_fault(problem, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    Plan.select(problem, target=CPU).run(strided(inputs.make_args(problem, seed=3)))
    (found,) = autotune.tune([problem], CPU, setup=autotune.Setup(timer=lambda call: call() or 1.0))
    assert found.wrong == {}
    assert len(found.row.measured) == 2


def test_fuzzed_calls_give_a_right_result_or_an_opfacade_error(toy, monkeypatch):
    """The calls use random problems and corrupted operands, some with uninitialised indices and counts."""
    monkeypatch.setenv("OPFACADE_VALIDATE", "indices")
    right = refused = 0
    for seed in range(80):
        rng = random.Random(seed)
        descriptor = small("pick", rng)
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
    assert right > 40
    assert refused > 15


def test_random_problems_have_every_combination_of_in_place_and_num_valid(toy):
    drawn = [harness_for("pick").problem("pick", seed, 300) for seed in range(40)]
    assert {(d.in_place, d.num_valid) for d in drawn} == {(a, b) for a in (False, True) for b in (False, True)}


# Faults


def all_rows(right, descriptor, args):
    """A fault that ignores num_valid and writes all rows."""
    right(replace(args, num_valid=None, index=args.index.clamp(0, descriptor.entries - 1)))


def next_row(right, descriptor, args):
    """A fault that reads the first invalid row."""
    right(args)
    valid, out = int(args.num_valid), args.x if descriptor.in_place else args.out
    if 0 < valid < descriptor.rows:
        out[0] += 0 * args.x[valid]


def one_row_less(right, descriptor, args):
    right(replace(args, num_valid=(args.num_valid - 1).clamp(0)))


FAULTS = [all_rows, next_row, one_row_less]


@pytest.fixture(params=FAULTS, ids=lambda fault: fault.__name__)
def spoiled(toy, request, monkeypatch):
    module = __import__("opfacade.backends.reference.toy", fromlist=["CANDIDATES"])
    mine = next(c for c in module.CANDIDATES if c.descriptor is toy.PickDescriptor and not c.config)

    def launcher(descriptor, *given):
        right = mine.launcher(descriptor, *given)
        return lambda args, workspace: request.param(lambda call: right(call, workspace), descriptor, args)

    monkeypatch.setattr(module, "CANDIDATES", (replace(mine, launcher=launcher),))
    registry.configs_for.cache_clear()
    registry.candidates_for.cache_clear()
    return lambda **more: counted(toy, **more)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_guarded_run_detects_each_fault_in_valid_rows(spoiled, in_place):
    descriptor = spoiled(in_place=in_place)
    subject = Subject(descriptor, "reference", "cpu")
    args = inputs.make_args(descriptor, seed=3, lengths=inputs.DrawnLengths(valid=4))
    before = numerics.snapshot(descriptor, args)
    wrong = guarded.run(subject, args)
    assert wrong or numerics.check(descriptor, args, subject.plan.sku, before=before).worst > 1
    found = verify.verify(quick=True, backend="reference", say=lambda text: None, descriptors=[descriptor])
    assert not found["ok"]


def test_crosscheck_detects_each_fault_that_changes_a_result(spoiled, monkeypatch, tmp_path):
    """Rows of an output past num_valid may have any content before the call, so only guarded runs check them."""
    descriptor = spoiled(in_place=True)
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path))
    args = inputs.make_args(descriptor, seed=3, lengths=inputs.DrawnLengths(valid=4))
    with pytest.raises(GuaranteeViolation, match="OPF-G001") as caught:
        Plan.select(descriptor, target=CPU).run(args)
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "0")
    assert replay_crosscheck(caught.value.dump).worst > 1
