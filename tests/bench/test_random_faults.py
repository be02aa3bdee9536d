"""The page's totals of random faults, and its text on each survivor."""

import json

import pytest

from bench import random_faults
from tests.mutation.operators import equivalent, population


def row(digest, outcome, file="opfacade/core/sku.py"):
    return {"digest": digest, "outcome": outcome, "file": file, "fault": f"{file}:1 {digest}: 'a | b' -> 'b'", "caught_by": ""}


@pytest.fixture
def places(tmp_path, monkeypatch):
    rows = [row("a", "caught"), row("b", "survived"), row("c", "survived"), row("d", "survived"), row("e", "refused")]
    groups = {
        "opfacade/core": {"seed": 5, "machine": {"commit": "0123abc"}, "mutants": rows},
        "kernels/mla": {"seed": 5, "machine": {"commit": "0123abc"}, "mutants": [row("f", "undecided", "kernels/mla/a.cuh")]},
    }
    (tmp_path / "operators.json").write_text(json.dumps(groups))
    (tmp_path / "equivalent.json").write_text(json.dumps({"b": "it is set again", "a": "no"}))
    (tmp_path / "mended.json").write_text(json.dumps({"c": "tests/a.py::t"}))
    monkeypatch.setattr(random_faults, "PLACE", tmp_path / "operators.json")
    monkeypatch.setattr(random_faults, "KNOWN", tmp_path)


@pytest.mark.usefixtures("places")
def test_a_fault_that_changes_nothing_is_no_part_of_the_score():
    line = "random faults made by operators, seed 5: 1 of 3 caught (0123abc), 1 more in a trial of each survivor"
    assert random_faults.sums() == [line]


@pytest.mark.usefixtures("places")
def test_the_page_has_a_row_for_each_family_and_each_survivor():
    lines = random_faults.section()
    assert "| core | 1 | 2 | 1 | 1 | 0 |" in lines
    assert "| attention and its caches | 0 | 0 | 0 | 0 | 1 |" in lines
    assert "| all | 1 | 2 | 1 | 1 | 1 |" in lines
    assert lines[-4:-1] == [
        "| `opfacade/core/sku.py:1 b: 'a / b' -> 'b'` | changes nothing: it is set again |",
        "| `opfacade/core/sku.py:1 c: 'a / b' -> 'b'` | `tests/a.py::t` catches it |",
        "| `opfacade/core/sku.py:1 d: 'a / b' -> 'b'` | open |",
    ]


def test_every_group_of_files_has_a_family():
    assert {population.group_of(file) for file in population.files()} <= set(random_faults._FAMILY)


def test_no_fault_is_both_mended_and_without_effect():
    assert not set(random_faults.known("mended")) & set(equivalent.reasons())
