"""The suite of GPU tests in parts: each test is in exactly one part, and the records of the parts form one record."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import suite
from bench.suite import joined
from bench.suite_part import bounds, cut
from tests.test_structure import ROOT

MACHINE = {"device": "a", "commit": "b", "date": "2026-01-01"}


def record(part, **facts):
    whole = {"machine": MACHINE, "part": part, "seconds": 2, "ran_to_its_end": True, "counts": {"passed": 3}}
    return whole | {"random_problems": {}, "shown": [], "not_passed": []} | facts


@pytest.mark.parametrize("tests", [0, 1, 5, 4440])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_test_is_in_one_part(tests, count):
    parts = [range(*bounds(which + 1, count, tests)) for which in range(count)]
    assert [i for part in parts for i in part] == list(range(tests))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_a_part_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="expected I/N"):
        cut(text)


def test_pytest_runs_the_part_alone(tmp_path):
    (tmp_path / "test_five.py").write_text("\n".join(f"def test_{i}(): pass" for i in range(5)))
    command = [sys.executable, "-m", "pytest", "-p", "bench.suite_part", "--part", "2/2", "-o", "addopts=", "-v", str(tmp_path)]
    done = subprocess.run([*command, "-c", "/dev/null", "-p", "no:cacheprovider"], cwd=ROOT, capture_output=True, text=True)
    assert [i for i in range(5) if f"test_{i} PASSED" in done.stdout] == [2, 3, 4], done.stdout


def test_processes_take_the_gpus_in_turn_and_their_parts_make_the_whole(monkeypatch):
    seen = []

    def run(command, env, stdout):
        words = dict(zip(command[3::2], command[4::2], strict=False))
        assert float(words["--limit"]) <= 60
        seen.append((words["--part"], env["CUDA_VISIBLE_DEVICES"], words["--commit"], command[-1]))
        Path(words["--out"]).write_text(json.dumps(record(words["--part"])))
        return subprocess.CompletedProcess(command, 1 if words["--part"] == "3/6" else 0)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.setattr(suite.subprocess, "run", run)
    whole, status = suite.spread(argparse.Namespace(limit=60.0, commit="c"), ["--heavy"], 3)
    assert sorted(seen) == [(f"{i}/6", "47"[i % 2], "c", "--heavy") for i in range(1, 7)]
    assert (status, whole["counts"]["passed"], whole["ran_to_its_end"]) == (1, 18, True)


def test_records_of_all_parts_make_one():
    rows = [{"problems": 2, "elements": 10, "worst_over_hard": worst, "worst_over_tight": worst} for worst in (0.5, 0.25)]
    skipped = {
        "not_passed": ["x: skipped"],
        "counts": {"passed": 3, "skipped": 1},
    }  # a module that is skipped at collection
    first = record("1/2", random_problems={"op": rows[0]}, **skipped)
    second = record("2/2", random_problems={"op": rows[1]}, shown=["s"], **skipped)
    whole = joined([second, first])
    assert whole["counts"] == {"passed": 6, "skipped": 1}
    assert whole["random_problems"] == {"op": {"problems": 4, "elements": 20, "worst_over_hard": 0.5, "worst_over_tight": 0.5}}
    assert (whole["seconds"], whole["ran_to_its_end"], whole["shown"]) == (4, True, ["s"])
    assert whole["not_passed"] == ["x: skipped"]
    assert "2 processes" in whole["note"]


def test_a_part_that_was_cut_off_is_not_forgotten():
    found = joined([record("1/2", ran_to_its_end=False), record("2/2")])
    assert not found["ran_to_its_end"]
    assert found["note"] == "In 2 processes; cut off: 1."
    assert joined([record("1/2"), record("2/2")])["note"] == "In 2 processes."


def test_smaller_parts_stand_for_one_that_was_cut_off():
    assert joined([record("5/6"), record("1/3"), record("6/6"), record("2/3")])["counts"]["passed"] == 4 * 3


@pytest.mark.parametrize("parts", [["1/2"], ["1/2", "1/2"], ["1/2", "2/3"], ["1/3", "3/3"], ["1/2", "2/4", "3/4", "4/4"]])
def test_a_missing_part_is_named(parts):
    with pytest.raises(ValueError, match=r"expected all parts of one suite, each once, got 1/"):
        joined([record(part) for part in parts])


def test_parts_of_two_commits_are_refused():
    with pytest.raises(ValueError, match="one commit"):
        joined([record("1/2"), record("2/2", machine=MACHINE | {"commit": "c"})])


def test_parts_of_other_kernels_make_no_record_and_one_names_those_of_its_parts():
    one, two = {"digest": "a"}, {"digest": "b"}
    assert joined([record("1/2", kernels=one), record("2/2", kernels=one)])["kernels"] == one
    assert joined([record("1/2"), record("2/2")])["kernels"] is None
    with pytest.raises(ValueError, match="expected parts of the same kernels"):
        joined([record("1/2", kernels=one), record("2/2", kernels=two)])
