"""Every planted fault still applies to the sources as they are, and they are many enough."""

import shutil

import pytest

from tests.mutation.mutants import CPU, GPU
from tests.mutation.run import ROOT, command, mutated, page


@pytest.mark.parametrize("mutant", [*GPU, *CPU], ids=lambda m: m.name)
def test_a_fault_applies(mutant, tmp_path):
    path = tmp_path / mutant.file
    path.parent.mkdir(parents=True)
    shutil.copy(ROOT / mutant.file, path)
    mutated(mutant, tmp_path)
    assert path.read_text() != (ROOT / mutant.file).read_text()


def test_there_are_enough_faults_each_with_its_tests():
    kernels = [m for m in GPU if m.file.startswith(("kernels/", "csrc/"))]
    python = [m for m in CPU if m.file.endswith(".py")]
    assert len(kernels) >= 16
    assert len(python) >= 10
    assert len({m.name for m in (*GPU, *CPU)}) == len(GPU) + len(CPU) >= 30
    for mutant in (*GPU, *CPU):
        for word in mutant.tests.partition(" -k ")[0].split():
            assert word == "--heavy" or (ROOT / word).exists(), word


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


def test_the_words_of_a_selection_stay_together():
    found = command(next(m for m in GPU if "--heavy" in m.tests), "gpu")
    assert found[-1].startswith("HND")
    assert "--heavy" in found
