"""docs/reliability.md says what the records say, and nothing else."""

import json

import pytest

from bench import reliability

MACHINE = {"device": "GPU", "torch": "2", "date": "2026-01-02"}
RECORDS = {
    "suite.json": {
        "machine": MACHINE,
        "seconds": 7,
        "counts": {"passed": 3, "failure": 1},
        "random_problems": {"op": {"problems": 2, "elements": 1000, "worst_over_hard": 0.5, "worst_over_tight": 0.25}},
        "shown": ["run_to_run decode runs=1000 different=0"],
        "not_passed": ["x: failure"],
    },
    "evidence.json": {
        "machine": MACHINE,
        "date": "2026-01-02T03:04:05Z",
        "sha256": "abc",
        "random_problems": [],
        "skus": [{"sku": "s", "ok": False, "tried": {"run_to_run": {"runs": 5, "different": 1}}}],
    },
    "sanitize.json": {
        "machine": MACHINE, "kinds": ["a"], "seeds": 2, "tools": [{"tool": "memcheck", "result": "clean", "seconds": 3}],
    },
    "invariance.json": {"machine": MACHINE, "shapes": [{"shape": "q", "best_invariant": 512, "cost": 1.25}]},
    "mutation.json": {"gpu": {"machine": MACHINE, "mutants": [{"fault": "f", "caught_by": ""}]}},
}  # fmt: skip


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(reliability, "RESULTS", tmp_path)
    for name, content in RECORDS.items():
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def test_the_page_is_what_the_records_give():
    assert reliability.PAGE.read_text() == reliability.page(), "run scripts/reliability"


def test_every_record_has_its_section_with_date_and_machine(results):
    text = reliability.page()
    assert text.count("GPU, torch 2; 2026-01-02") == 5
    for words in (
        "3 passed, 0 skipped, 1 failure, 0 error",
        "- `x: failure`",
        "1,000 | 0.500 | 0.250",
        "runs=1000 different=0",
        "0 of 1 SKUs held",
        "1 of 5 differ",
    ):
        assert words in text, words
    assert "**no**" in text
    assert "| memcheck | clean | 3 |" in text
    assert "| q | 512 | x1.250 |" in text
    assert "- missed: f" in text
    assert "No record yet of faults planted in Python" in text


def test_what_has_no_record_is_said(results):
    for path in results.glob("*.json"):
        path.unlink()
    text = reliability.page()
    assert text.count("No record yet") == len(reliability.SECTIONS)
    assert "SKUs held" not in text


def test_a_run_that_was_cut_off_is_told_as_one(results):
    cut = RECORDS["suite.json"] | {"machine": MACHINE | {"date": "2026-02-02"}, "ran_to_its_end": False}
    (results / "suite.json").write_text(json.dumps(cut))
    assert "in 7 s, when it was cut off." in reliability.page()


def test_a_record_may_say_how_it_came_about(results):
    noted = RECORDS["suite.json"] | {"note": "Two processes, one after the other."}
    (results / "suite.json").write_text(json.dumps(noted))
    assert "Two processes, one after the other." in reliability.page().splitlines()
