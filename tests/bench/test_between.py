"""bench.between: compares medians of two commits, from records whose rows list times by name."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import between

ROOT = Path(__file__).resolve().parents[2]


def record(commit, *times, impl="opfacade"):
    rows = [{"shape": f"shape {i}", "impl": impl, "us": {"median": time}} for i, time in enumerate(times)]
    return {"machine": {"device": "a GPU", "commit": commit}, "table": rows, "kernels": {"digest": commit}}


def test_a_row_has_the_medians_of_both_and_the_slowest_is_first():
    old = [record("a", 10.0, 20.0), record("a", 12.0, 20.0), record("a", 11.0, 99.0)]
    new = [record("b", 11.0, 30.0), record("b", 11.0, 30.0), record("b", 1.0, 30.0)]
    found = between.compared(old, new)
    assert [(row["problem"], row["ratio"]) for row in found["rows"]] == [("shape 1", 1.5), ("shape 0", 1.0)]
    assert found["rows"][1] | {"old": [10.0, 12.0, 11.0], "new": [11.0, 11.0, 1.0]} == found["rows"][1]
    assert (found["old"], found["machine"]["commit"], found["kernels"]) == ("a", "b", {"digest": "b"})


def test_only_what_both_timed_is_compared():
    assert between.rows([record("a", 1.0)], [record("b", 2.0, 3.0), record("b", 2.0, impl="other")]) == [
        {"problem": "shape 0", "impl": "opfacade", "time": "us", "ratio": 2.0, "old": [1.0], "new": [2.0]}
    ]


@pytest.mark.parametrize("old", [["a", "c"], ["a", None]])
def test_records_of_several_commits_are_no_side(old):
    with pytest.raises(SystemExit, match="one commit: old has"):
        between.compared([record(commit, 1.0) for commit in old], [record("b", 1.0)])


def test_the_command_writes_what_it_is_told(tmp_path):
    for commit in "ab":
        (tmp_path / f"{commit}.json").write_text(json.dumps(record(commit, 1.0)))
    words = ["--old", tmp_path / "a.json", "--new", tmp_path / "b.json", "--out", tmp_path / "out.json"]
    done = subprocess.run([sys.executable, "-m", "bench.between", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "1.0000 shape 0, opfacade, us\n", done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["rows"][0]["ratio"] == 1.0
