"""A family with only its own files passes every tool, under a name that no other file contains. The family is a copy of the toy
family under another name, in a folder outside the checkout, so a tool that names the toy family would fail."""

import random
import re
import shutil
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from opfacade import Plan, Preference, Target, explain, jit, record
from opfacade.bench import Options, measure
from opfacade.errors import ArgumentError, GuaranteeViolation, OpfacadeError
from opfacade.plan import forget_selections
from opfacade.select import registry
from opfacade.testing import inputs, numerics
from opfacade.testing.subject import Subject
from opfacade.tools import verify
from opfacade.tools.replay import replay
from opfacade.tools.workload import Work, read
from opfacade.tune import tune as autotune
from opfacade.tune.measure import MeasureEffort
from tests import emulator
from tests.families.mount import mounted
from tests.mutation.run import mutated
from tests.support.assert_guarantee import hold
from tests.support.fuzzing import small, spoiled_args

CPU, SM_90A = Target.cpu(), Target.parse("sm_90a")
NAME = "newcomer"
WORDS = {"toy": NAME, "scale": f"{NAME}_scale", "pick": f"{NAME}_pick"}
PLACES = ("opfacade", "kernels", "csrc", "tests", "bench", "scripts")


def renamed(text):
    return re.sub(rf"\b({'|'.join(WORDS)})\b", lambda found: WORDS[found[0]], text)


def copied(place):
    """Copies the toy family under the new name and returns the folder of the copy."""
    toy, family = Path(__file__).parent / "toy", place / "tests/families" / NAME
    for path in toy.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            target = family / renamed(path.relative_to(toy).as_posix())
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(renamed(path.read_text()))
    return family


def sources(place, family):
    """Merges the sources of the package with those of the family."""
    for folder in ("csrc", "kernels"):
        shutil.copytree(emulator.ROOT / folder, place / folder)
        shutil.copytree(family / folder, place / folder, dirs_exist_ok=True)
    return place


def touched(root):
    """Files of a checkout that name the family, except this test; the record of faults may name the test."""
    found = (path for place in PLACES for path in (root / place).rglob("*") if path.is_file() and path.suffix != ".pyc")
    return sorted(
        path.relative_to(root).as_posix()
        for path in found
        if path != Path(__file__)
        and (NAME in path.name or NAME in path.read_text(errors="replace").replace(Path(__file__).name, ""))
    )


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    return copied(tmp_path_factory.mktemp("checkout"))


def scaled(plans):
    return plans.ScaleDescriptor(rows=9, width=20, dtype="f16")


def ran(descriptor):
    args = inputs.make_args(descriptor, seed=3)
    x = args.x.clone()
    Plan.select(descriptor, target=CPU).run(args)
    assert torch.equal(args.x, (x.float() * (args.gain * 0.5)).half())
    return args


def through_explain(problem, *_):
    assert explain(problem, target=CPU).chosen.name == "reference/torch"


def through_select(problem, *_):
    assert Plan.select(problem, target=CPU).sku.id.startswith(f"{NAME}/{NAME}_scale/reference/cpu/torch@1/")


def through_run(problem, *_):
    ran(problem)


def through_can_implement(problem, *_):
    plan, args = Plan.select(problem, target=CPU), inputs.make_args(problem, seed=3)
    assert plan.can_implement(args)
    assert [issue.code for issue in plan.can_implement(replace(args, gain=args.gain[1:])).issues] == ["OPF-A011"]


def through_compile(problem, monkeypatch, tmp_path):
    """Compiles the family's own templates for the emulator."""
    if emulator.compiler() is None:
        pytest.skip("no g++ to build kernels for the host with")
    plan = Plan.select(counted(problem), Preference(backend="cuda"), SM_90A)
    assert plan.jit_spec.template == f"{NAME}/{NAME}_pick"
    copied(tmp_path)
    kernel_holds(problem, monkeypatch, tmp_path)


def kernel_holds(problem, monkeypatch, place):
    """Asserts that the kernel of the family in `place` keeps its bound and leaves rows past num_valid unchanged."""
    with emulated(monkeypatch, sources(place / "root", place / "tests/families" / NAME)):
        for seed in range(4):
            hold(emulator.subject(counted(problem)), seed)


def counted(problem):
    kind = registry.descriptor_types()[f"{NAME}_pick"]
    return kind(rows=9, width=20, entries=5, dtype="f16", num_valid=True)


@contextmanager
def emulated(monkeypatch, root):
    """Makes the emulator build from `root`."""
    first, plain = (emulator.ROOT / "tests/emulator", root), emulator.build
    with monkeypatch.context() as patched:
        patched.setenv("OPFACADE_SOURCE_ROOT", str(root))
        patched.setattr(emulator, "library_of", lambda spec: plain(spec, first))  # the family's own sources come first
        jit.forget()
        yield
    jit.forget()


def through_verify(problem, *_):
    found = verify.verify(quick=True, backend="reference", say=lambda text: None, descriptors=[problem])
    assert found["ok"]
    assert set(found["skus"][0]["tried"]) == {"bound", "run_to_run", "batch_invariance"}


def through_crosscheck(problem, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path))
    ran(problem)
    spoil(problem, monkeypatch)
    with pytest.raises(GuaranteeViolation, match="OPF-G001"):
        Plan.select(problem, target=CPU).run(inputs.make_args(problem, seed=3))


def spoil(problem, monkeypatch):
    """Makes the default candidate add 1 to an element after each launch."""
    module = __import__(f"opfacade.backends.reference.{NAME}", fromlist=["CANDIDATES"])
    first, *others = module.CANDIDATES

    def launcher(*given):
        right = first.launcher(*given)
        return lambda args, workspace: (right(args, workspace), args.x[0].add_(1))

    monkeypatch.setattr(module, "CANDIDATES", (replace(first, launcher=launcher), *others))
    registry.configs_for.cache_clear()
    registry.candidates_for.cache_clear()
    forget_selections()


def through_tune(problem, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    (found,) = autotune.tune([problem], CPU, setup=autotune.Setup(timer=lambda call: call() or 1.0))
    assert found.wrong == {}
    assert len(found.row.measured) == 2


def through_bench(problem, *_):
    found = measure([Work(problem)], Options(effort=MeasureEffort(least=3, most=4), peers=None))
    assert found["ok"]
    assert found["rows"][0]["name"] == f"{NAME}_scale rows=9 width=20 f16"


def through_record(problem, monkeypatch, tmp_path):
    with record(tmp_path / "trace.jsonl", lengths=True):
        ran(problem)
    (work,) = read((tmp_path / "trace.jsonl").read_text())
    assert (work.descriptor, work.runs) == (problem, 1)


def through_replay(problem, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_LOG", "dump")
    monkeypatch.setenv("OPFACADE_LOG_DEST", str(tmp_path / "log"))
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path / "dumps"))
    ran(problem)
    monkeypatch.delenv("OPFACADE_LOG")
    (again,) = replay(tmp_path / "dumps")
    assert (again.same, again.sound) == (True, True)


def through_fuzz(problem, *_):
    right = refused = 0
    for seed in range(40):
        rng = random.Random(seed)
        descriptor = small(problem.op, rng)
        plan, args = Plan.select(descriptor, target=CPU), inputs.make_args(descriptor, seed=seed)
        args = spoiled_args(rng, args, 1) if seed % 2 else args
        before = numerics.snapshot(descriptor, args) if plan.can_implement(args) else None
        try:
            plan.run(args)
        except OpfacadeError:
            refused += 1
            continue
        right += 1
        assert numerics.check(descriptor, args, plan.sku, before=before).worst <= 1
    assert right > 20
    assert refused > 5


def through_validation(problem, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    args = inputs.make_args(problem, seed=3)
    args.x[0, 5] = float("nan")
    with pytest.raises(ArgumentError, match="OPF-V003"):
        Plan.select(problem, target=CPU).run(args)


def through_conformance(*_):
    for descriptor in (e for e in registry.examples() if e.op in WORDS.values()):
        hold(Subject(descriptor, "reference", "cpu"))


def through_mutation(monkeypatch, tmp_path):
    """Plants each fault of the family's list in a copy; the tests of the family's guarantee must detect the fault."""
    faults = faults_of(copied(tmp_path / "sound"))
    for number, fault in enumerate(faults):
        place = tmp_path / str(number)
        wrong = copied(place)
        mutated(fault, place)
        in_kernel = fault.file.endswith(".cuh")
        if in_kernel and emulator.compiler() is None:
            continue
        with mounted(NAME, wrong) as plans:
            check = partial(kernel_holds, scaled(plans), monkeypatch, place) if in_kernel else through_conformance
            with pytest.raises(AssertionError):
                check()
    assert {fault.file.endswith(".cuh") for fault in faults} == {False, True}


def faults_of(family):
    spec = spec_from_file_location("faults", family / "faults.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FAULTS


DOORS = (
    "explain", "select", "run", "can_implement", "compile", "verify", "crosscheck", "tune", "bench", "record", "replay", "fuzz",
    "validation", "conformance", "mutation",
)  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_the_family_passes_each_tool(family, door, monkeypatch, tmp_path):
    if door == "mutation":  # this tool mounts copies with faults
        through_mutation(monkeypatch, tmp_path)
        return
    with mounted(NAME, family) as plans:
        globals()[f"through_{door}"](scaled(plans), monkeypatch, tmp_path)


def test_no_other_file_names_the_family(family, capsys):
    files = [path for path in family.rglob("*") if path.is_file()]
    found = touched(emulator.ROOT)
    with capsys.disabled():
        print(f"\n{NAME}: {len(files)} files of its own, {len(found)} other files touched")
    assert found == []


def test_a_file_that_names_the_family_is_found(tmp_path):
    (tmp_path / "opfacade/bench").mkdir(parents=True)
    (tmp_path / "opfacade/bench/peers.py").write_text(f'LABELS = {{"{NAME}_scale": "x"}}\n')
    (tmp_path / "opfacade/bench/measure.py").write_text("LABELS = {}\n")
    assert touched(tmp_path) == ["opfacade/bench/peers.py"]
