"""Faults of kernels on a GPU: which kinds and test files judge a line, and which processes are started. No GPU is needed."""

import shutil
import sys

import pytest

from tests.mutation import run
from tests.mutation.operators import __main__ as command
from tests.mutation.operators import judged, on_gpu, trial
from tests.mutation.operators.population import ROOT, faults_of

ON_A_GPU = [
    ("kernels/mla/math.cuh", "mla", "tests/families/mla/"),
    ("csrc/sampling/sample.cu.jinja", "sample", "tests/families/sampling/"),
    ("kernels/cascade/merge_states.cuh", "merge", "tests/families/cascade/"),
]


@pytest.mark.parametrize(("file", "kind", "folder"), ON_A_GPU)
def test_what_judges_a_line_on_a_gpu_is_derived(file, kind, folder):
    kinds, found = on_gpu.kinds_of(file), judged.tests_of(file, 20, gpu=True)
    assert 0 < len(kinds) <= on_gpu.KINDS
    assert all(kind in one for one in kinds)
    assert any(test.startswith(folder) for test in found[: on_gpu.FILES])
    assert all("mark.gpu" in (ROOT / test).read_text() for test in found)


def test_kinds_of_a_shared_header_are_of_several_templates():
    templates = {on_gpu._sources()[kind][0] for kind in on_gpu.kinds_of("kernels/common/device.cuh")}
    assert len(templates) == on_gpu.KINDS


def test_a_part_of_a_template_is_judged_by_those_that_read_it():
    assert on_gpu.kinds_of("csrc/common/_binding.jinja")


def test_every_header_of_a_kernel_is_judged_on_a_gpu():
    """By a kind whose binary contains it, or by its test files."""
    for file in on_gpu.judged_there():
        assert on_gpu.kinds_of(file) or judged.tests_of(file, 1, gpu=True), file


def fake_gpu(monkeypatch, tmp_path, *answers):
    """A trial on a GPU in which processes end with these results, and the (words, environment, file text) of each start."""
    told, started = iter(answers), []
    fault = faults_of("kernels/cascade/merge_states.cuh")[3]

    def end(words, root, env, limit):
        started.append((words, env, (root / fault.file).read_text()))
        return next(told)

    tmp_path.mkdir(exist_ok=True)
    monkeypatch.setattr(run, "ended", end)
    monkeypatch.setattr(run, "copied", lambda root: shutil.copytree(ROOT / "kernels/cascade", root / "kernels/cascade"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    own = trial.Trial(run.Place(tmp_path, "gpu"), 9.0)
    return fault, own.row(fault, "", 99.0), started


def test_a_fault_of_a_kernel_is_judged_by_gpu_tests_of_its_kinds(monkeypatch, tmp_path):
    by = "tests/mutation/focus.py::test_bound[merge-odd]"
    fault, row, started = fake_gpu(monkeypatch, tmp_path, (1, f"FAILED {by} - AssertionError"), (0, "1 passed"))
    assert (row.outcome, row.by) == (trial.CAUGHT, by)
    sound = (ROOT / fault.file).read_text()
    assert [text for *_, text in started] == [fault.planted(sound), sound]
    (words, env, _), (again, its, _) = started
    assert words[words.index("-m", 2) + 1] == again[again.index("-m", 2) + 1] == "gpu"
    assert "tests/mutation/focus.py" in words
    assert again[-3:-1] == ["-k", "test_bound"]
    assert env["OPFACADE_FOCUS"] == "gpu"
    assert env["OPFACADE_FOCUS_KINDS"].split() == its["OPFACADE_FOCUS_KINDS"].split() == on_gpu.kinds_of(fault.file)
    assert [env["CUDA_VISIBLE_DEVICES"], its["CUDA_VISIBLE_DEVICES"]] == ["4", "7"]


def test_a_fault_that_no_gpu_test_sees_survives_and_a_broken_compiler_shows_nothing(monkeypatch, tmp_path):
    assert fake_gpu(monkeypatch, tmp_path / "a", (0, "9 passed"))[1].outcome == trial.SURVIVED
    refused = (1, "opfacade.errors.CompileError: x\nFAILED tests/mutation/focus.py::test_bound[merge-odd]")
    assert fake_gpu(monkeypatch, tmp_path / "b", refused)[1].outcome == trial.REFUSED


def test_on_a_gpu_only_kernels_are_drawn(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["operators", "--gpu", "--seed", "3", "--count", "3", "--list"])
    assert command.main() == 0
    assert all(line.split()[1].startswith(on_gpu.FOLDERS) for line in capsys.readouterr().out.splitlines())
