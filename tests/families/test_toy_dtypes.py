"""Operands of each element type pass every tool of the host and a kernel in the emulator."""

import shutil
from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target, record
from opfacade import plan as plans
from opfacade.bench import Options, measure
from opfacade.core.dtypes import DTYPES, torch_dtype
from opfacade.errors import DTypeError, GuaranteeViolation
from opfacade.select import registry
from opfacade.testing import determinism, guarded, inputs, numerics
from opfacade.testing.bits import bits, fill, same_bits
from opfacade.testing.subject import Subject
from opfacade.tools import verify
from opfacade.tools.crosscheck import replay as replay_crosscheck
from opfacade.tools.replay import replay
from opfacade.tools.workload import Work, read
from opfacade.tune import tune as autotune
from opfacade.tune.measure import MeasureEffort
from tests import emulator
from tests.families.mount import mounted
from tests.families.test_toy_kernel import SM_90A, root  # noqa: F401  fixture
from tests.families.test_toy_kernel import toy as with_kernels  # noqa: F401  fixture
from tests.support.assert_guarantee import hold

CPU = Target.cpu()
pytestmark = pytest.mark.usefixtures("fresh_telemetry")


@pytest.fixture
def toy():
    with mounted("toy") as found:
        yield found


def problem_of(toy, dtype):
    return toy.KeepDescriptor(rows=9, width=20, dtype=dtype)


# bool, an unsigned one-byte float, a common float and an integer: other dtypes do not differ for the tools.
OF_TOOLS = ("bool", "f8_e8m0", "bf16", "i64")


@pytest.fixture(params=DTYPES)
def problem(toy, request):
    return problem_of(toy, request.param)


@pytest.fixture(params=[name if name in OF_TOOLS else pytest.param(name, marks=pytest.mark.heavy) for name in DTYPES])
def some_problem(toy, request):
    """A problem for the slower tools, which run with these four dtypes only."""
    return problem_of(toy, request.param)


def wanted(args):
    zero = torch.zeros((), dtype=bits(args.x).dtype)
    return torch.where(args.mask[:, None], bits(args.x), zero)


def test_a_run_with_any_strides_gives_the_same_bits(problem):
    plan, args = Plan.select(problem, target=CPU), inputs.make_args(problem, seed=3)
    assert plan.sku.id.startswith(f"toy/keep/reference/cpu/torch@1/x={problem.dtype}/")
    assert 0 < int(args.mask.sum()) < 9
    assert bits(args.x).unique().numel() > {"bool": 1, "f8_e8m0": 4}.get(problem.dtype, 8)
    x = torch.empty(40, 18, dtype=args.x.dtype).t()[::2, ::2].copy_(args.x)
    for call in (args, replace(args, x=x, out=fill(args.out.clone(), 7.0))):
        assert not torch.equal(bits(call.out), wanted(call))
        assert plan.can_implement(call)
        plan.run(call)
        assert torch.equal(bits(call.out), wanted(call))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, 7.0])
@pytest.mark.parametrize("name", DTYPES)
def test_fill_stores_the_nearest_value_of_each_dtype(name, value):
    tensor = fill(torch.ones(4, 8, dtype=torch.uint8).view(torch_dtype(name)), value)
    if DTYPES[name].is_float:
        want = torch.full(tensor.shape, value, dtype=torch.float64).to(tensor.dtype).double()
        assert torch.equal(tensor.double().nan_to_num(3.0), want.nan_to_num(3.0))
    elif value in (0.0, 7.0):
        assert bool((tensor.long() == (value if name != "bool" else value > 0)).all())
    else:
        assert bool((tensor.view(torch.uint8) == 255).all())


def test_another_dtype_of_the_same_size_is_refused(problem):
    plan, args = Plan.select(problem, target=CPU), inputs.make_args(problem, seed=3)
    for name, facts in DTYPES.items():
        if name != problem.dtype and facts.bits == DTYPES[problem.dtype].bits:
            with pytest.raises(DTypeError, match="OPF-A010") as caught:
                plan.run(replace(args, out=args.out.view(torch_dtype(name))))
            assert DTYPES[problem.dtype].torch in str(caught.value)


def test_the_guarantee_holds_and_a_fault_is_detected(some_problem):
    subject = Subject(some_problem, "reference", "cpu")
    hold(subject, 0)
    hold(subject, 1, interleaved=True)
    shown = determinism.batch_invariance(subject, determinism.QUICK, seed=1)
    assert shown.different == 0 < shown.compared
    args = inputs.make_args(some_problem, seed=3)
    subject.run(args)
    flipped = args.out.view(torch.uint8)
    flipped[4, 3] ^= 1
    report = numerics.check(some_problem, args, subject.plan.sku)
    assert (report.worst, report.elements) == (float("inf"), 180)
    assert f"out[4, {3 // args.out.itemsize}]" in report.where


def test_a_run_writes_nothing_outside_its_tensors(some_problem):
    guarded.run(Subject(some_problem, "reference", "cpu"), inputs.make_args(some_problem, seed=3))


def test_a_logged_call_has_statistics_and_a_dumped_call_can_be_replayed(some_problem, monkeypatch, tmp_path):
    args = inputs.make_args(some_problem, seed=3)
    monkeypatch.setenv("OPFACADE_LOG_DEST", str(tmp_path / "log"))
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path / "dumps"))
    for level in ("stats", "dump"):
        monkeypatch.setenv("OPFACADE_LOG", level)
        plans.forget_selections()
        Plan.select(some_problem, target=CPU).run(args)
    monkeypatch.delenv("OPFACADE_LOG")
    assert "mean" in (tmp_path / "log").read_text()
    (again,) = replay(tmp_path / "dumps")
    assert (again.same, again.sound) == (True, True)


def test_crosscheck_accepts_a_right_result_and_detects_a_fault(some_problem, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path))
    args = inputs.make_args(some_problem, seed=3)
    Plan.select(some_problem, target=CPU).run(args)
    module = __import__("opfacade.backends.reference.toy", fromlist=["CANDIDATES"])
    right = next(c for c in module.CANDIDATES if c.descriptor is type(some_problem))

    def launcher(*given):
        launch = right.launcher(*given)

        def spoiled(args, workspace):
            launch(args, workspace)
            args.out.view(torch.uint8)[2, 0] ^= 1

        return spoiled

    monkeypatch.setattr(module, "CANDIDATES", (replace(right, launcher=launcher),))
    for known in (registry.configs_for, registry.candidates_for):
        known.cache_clear()
    plans.forget_selections()
    with pytest.raises(GuaranteeViolation, match="OPF-G001") as caught:
        Plan.select(some_problem, target=CPU).run(args)
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "0")
    assert replay_crosscheck(caught.value.dump).worst > 1


def test_record_benchmark_and_tune(some_problem, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    with record(tmp_path / "trace.jsonl"):
        Plan.select(some_problem, target=CPU).run(inputs.make_args(some_problem, seed=3))
    (work,) = read((tmp_path / "trace.jsonl").read_text())
    assert work.descriptor == some_problem
    found = measure([Work(some_problem)], Options(effort=MeasureEffort(least=3, most=4), peers=None))
    assert found["ok"]
    assert found["rows"][0]["bytes"] == 2 * 9 * 20 * DTYPES[some_problem.dtype].bits // 8 + 9
    (tuned,) = autotune.tune([some_problem], CPU, setup=autotune.Setup(timer=lambda call: call() or 1.0))
    assert tuned.wrong == {}


def test_verify(some_problem):
    found = verify.verify(quick=True, backend="reference", say=lambda text: None, descriptors=[some_problem])
    assert found["ok"]
    assert set(found["skus"][0]["tried"]) == {"bound", "run_to_run", "batch_invariance"}


@pytest.mark.parametrize("level", ["indices", "full"])
def test_each_validation_level_accepts_a_valid_call(some_problem, monkeypatch, level):
    monkeypatch.setenv("OPFACADE_VALIDATE", level)
    args = inputs.make_args(some_problem, seed=3)
    Plan.select(some_problem, target=CPU).run(args)
    assert torch.equal(bits(args.out), wanted(args))


@pytest.mark.parametrize("dtype", DTYPES)
@emulator.needed
def test_the_kernel_keeps_its_guarantee(with_kernels, dtype):  # noqa: F811
    subject = emulator.subject(with_kernels.KeepDescriptor(rows=9, width=20, dtype=dtype))
    hold(subject, 0)
    args = inputs.make_args(subject.descriptor, seed=3)
    subject.run(args)
    assert torch.equal(bits(args.out), wanted(args))


@pytest.mark.parametrize("dtype", ["bool", "i64"])
def test_the_kernel_compiles_for_each_dtype(with_kernels, dtype):  # noqa: F811
    if shutil.which("g++") is None:
        pytest.skip("no g++ to build a binding with")
    plan = Plan.select(with_kernels.KeepDescriptor(rows=9, width=20, dtype=dtype), Preference(backend="cuda"), SM_90A)
    plan.compile()
    assert plan.cache_state == "shared"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_keeps_its_guarantee_on_a_gpu(with_kernels, dtype):  # noqa: F811
    descriptor = with_kernels.KeepDescriptor(rows=300, width=63, dtype=dtype)
    subject = Subject(descriptor, "cuda", "cuda")
    for seed in range(3):
        hold(subject, seed)
    args = subject.args(3)
    again = replace(args, x=args.x.t().contiguous().t(), out=fill(args.out.clone(), 7.0))
    for _ in range(3):
        subject.plan.run(args), subject.plan.run(again)
    assert same_bits(args.out, again.out)
    assert verify.verify(quick=True, backend="cuda", say=lambda text: None, descriptors=[descriptor])["ok"]
