"""Every planted fault still applies to the current sources, and no operator creates it."""

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from bench import reliability
from opfacade.tools import kernel_digests
from tests.mutation import run
from tests.mutation.mutants import CPU, GPU, HOST
from tests.mutation.run import ROOT, caught, caught_on_host, command, mutated, page
from tests.mutation.selected import Case, selects


@pytest.mark.parametrize("mutant", [*GPU, *CPU, *HOST], ids=lambda m: m.name)
def test_a_fault_applies(mutant, tmp_path):
    path = tmp_path / mutant.file
    path.parent.mkdir(parents=True)
    shutil.copy(ROOT / mutant.file, path)
    mutated(mutant, tmp_path)
    assert path.read_text() != (ROOT / mutant.file).read_text()
    if mutant.file.endswith(".py"):
        compile(path.read_text(), mutant.file, "exec")


def test_every_fault_has_a_name_of_its_own_and_its_tests():
    assert len({m.name for m in (*GPU, *CPU, *HOST)}) == len(GPU) + len(CPU) + len(HOST)
    for mutant in (*GPU, *CPU, *HOST):
        for word in mutant.tests.partition(" -k ")[0].split():
            assert word == "--heavy" or (ROOT / word).exists(), word


def test_the_words_of_every_fault_select_a_test():
    done = subprocess.run([sys.executable, "-m", "tests.mutation.selected"], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["0 select no test: []"], done.stdout[-2000:]


SELECTIONS = [
    ("tests/c/a.py -k b", False, True),
    ("tests/c/a.py -k c", False, False),
    ("tests/c/a.py -k d", True, True),
    ("tests/c/a.py -k d", False, False),
    ("tests/c/a.py -k f", True, False),
    ("tests/c/a.py --heavy -k f", False, True),
]


@pytest.mark.parametrize(("words", "gpu", "found"), SELECTIONS)
def test_words_select_a_test_of_their_file_that_can_run(words, gpu, found):
    ids = ("tests/c/a.py::b[x]", "tests/c/a.py::d", "tests/c/a.py::f", "tests/c/e.py::c")
    tests = [Case(id, gpu=id.endswith("::d"), heavy=id.endswith("::f")) for id in ids]
    assert selects(replace(CPU[0], tests=words), tests, gpu) is found


def test_a_lower_limit_of_memory_stays():
    """No process may exceed a limit that the machine sets."""
    set_before = "import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 33, 1 << 33))"
    code = f"{set_before}; from tests.mutation import warm; warm.limit_memory(); print(r.getrlimit(r.RLIMIT_AS))"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert told.stdout == f"{(1 << 33, 1 << 33)}\n", told.stderr


def test_a_text_that_is_not_there_once_is_refused(tmp_path):
    mutant = CPU[0]
    path = tmp_path / mutant.file
    path.parent.mkdir(parents=True)
    path.write_text("nothing")
    with pytest.raises(SystemExit, match="occurs 0 times"):
        mutated(mutant, tmp_path)


def test_a_missed_fault_is_shown_as_such():
    row = {"fault": "f", "file": "x", "caught_by": "", "blind": "why"}
    machine = {"device": "d", "torch": "t", "date": "2026-01-01"}
    text = page({"gpu": {"machine": machine, "seconds": 1, "mutants": [row, row | {"caught_by": "t.py::a[b]"}]}})
    assert "1 of 2 caught" in text
    assert "**missed**: why" in text
    assert "`t.py::a[b]`" in text


def test_a_record_names_its_commit_and_its_kernels_and_a_row_of_other_sources_changes_neither(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "RESULTS", tmp_path / "mutation.json")
    first, second = ({"fault": m.name, "file": m.file, "caught_by": "t.py::a", "blind": "", "seconds": 2.0} for m in CPU[:2])
    run.merge("cpu", second, run.origin("cpu", "0123abc"), None)
    run.merge("cpu", first, {"machine": {"commit": "fffffff"}, "kernels": {}}, None)
    found = run.loaded()["cpu"]
    assert found["machine"]["commit"] == "0123abc"
    assert kernel_digests.is_present(found["kernels"])
    assert (found["seconds"], [row["fault"] for row in found["mutants"]]) == (4, [CPU[0].name, CPU[1].name])
    assert "commit 0123abc, 4 s" in page(run.loaded())
    assert reliability.outdated("mutation cpu", found) == ""
    assert "older" in reliability.outdated("mutation cpu", found | {"kernels": {"digest": "other"}})


def test_faults_that_run_emulated_are_those_of_a_gpu():
    assert run.origin("emulated", "0123abc")["listed"] == len(run.LISTS["gpu"])


def test_faults_of_kernels_take_the_gpus_in_turn_and_others_see_none(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    seen = {
        device: [run.environment(GPU[0], tmp_path, run.Place(tmp_path, device), i)["CUDA_VISIBLE_DEVICES"] for i in range(3)]
        for device in ("gpu", "cpu")
    }
    assert seen == {"gpu": ["4", "7", "4"], "cpu": ["", "", ""]}


def row_of(mutant, by="t.py::a"):
    return {"fault": mutant.name, "file": mutant.file, "caught_by": by, "blind": "", "seconds": 2.0}


def test_rows_add_up_in_a_folder_as_in_the_repository(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "RESULTS", tmp_path / "mutation.json")
    run.merge("cpu", row_of(CPU[0]), run.origin("cpu", "0123abc"), None)
    (tmp_path / "out").mkdir()
    for mutant in CPU[1:3]:
        run.merge("cpu", row_of(mutant), {}, tmp_path / "out")
    assert [row["fault"] for row in run.recorded("cpu", tmp_path / "out")] == [m.name for m in CPU[:3]]
    assert [row["fault"] for row in run.recorded("cpu", None)] == [CPU[0].name]


def test_faults_that_were_not_tried_are_counted_on_both_pages(monkeypatch, tmp_path):
    """Compared with the current list, even if the record was begun with another list."""
    monkeypatch.setattr(run, "RESULTS", tmp_path / "mutation.json")
    run.merge("cpu", row_of(CPU[0]), run.origin("cpu", "0123abc") | {"listed": 1}, None)
    told = f"isted and not tried: {len(CPU) - 1}"
    assert f"L{told}." in page(run.loaded())
    assert reliability.mutation(run.loaded()["cpu"])[0].startswith(f"1 of 1 planted faults caught; l{told}; ")
    assert "not tried" not in reliability.mutation({"mutants": [row_of(CPU[0])], "listed": 1})[0]


@pytest.mark.parametrize("fails", [False, True])
def test_rows_that_were_added_are_taken_back_where_sound_sources_fail(monkeypatch, tmp_path, fails):
    monkeypatch.setattr(run, "RESULTS", tmp_path / "mutation.json")
    monkeypatch.setattr(run, "tried", lambda mutant, *_: row_of(mutant, "t.py::a" if mutant.edits or fails else ""))
    monkeypatch.setattr(run, "origin", lambda *_: {"machine": {"device": "d", "torch": "t", "date": "2026-01-01"}})
    run.merge("cpu", row_of(CPU[0]), run.origin(), None)
    monkeypatch.setattr(sys, "argv", ["run", "--cpu", "--again", "2"])
    assert run.main() == (2 if fails else 0)
    assert [row["fault"] for row in run.recorded("cpu", None)] == [m.name for m in (CPU[:1] if fails else CPU[:3])]


def test_the_words_of_a_selection_stay_together():
    found = command(next(m for m in GPU if "--heavy" in m.tests), "gpu")
    assert found[-1].startswith("HND")
    assert "--heavy" in found


REFUSALS = (
    "E   tests.emulator.builds.CompileError: In file included from <stdin>:2:",
    "/tmp/x/math.cuh:61:5: error: 'widen' was not declared in this scope",
    '/tmp/x/math.cuh(61): error: identifier "widen" is undefined',
    "host.cc:3:10: fatal error: no.h: No such file or directory",
)


@pytest.mark.parametrize("printed", REFUSALS)
def test_a_fault_that_no_compiler_takes_is_not_caught(printed):
    failed = "FAILED tests/a.py::b - assert 1 == 2"
    assert caught(CPU[0], 1, failed) == "tests/a.py::b"
    assert caught(CPU[0], 1, f"{printed}\n{failed}") == ""


def test_a_host_fault_is_caught_by_a_test_and_not_by_an_import():
    one = HOST[0]
    assert caught_on_host(one, 1, "FAILED tests/a.py::b[c d] - assert 1 == 2") == "tests/a.py::b[c d]"
    assert caught_on_host(one, 1, "ERROR tests/a.py::b - OSError: x") == "tests/a.py::b"
    assert caught_on_host(one, None, "") == "no end within the time"
    assert caught_on_host(one, 0, "3 passed") == ""
    assert caught_on_host(one, 2, "ERROR tests/a.py - ImportError: x") == ""
    assert caught_on_host(one, 5, "no tests ran") == ""
