"""A recorded run shows which tests are specific to a line: those that run it and few other lines, and are fast; if there are
none, tests of near lines.
"""

import json
import subprocess
import sys

import pytest

from tests.families.moe import test_moe_kernels as kernels
from tests.mutation import run
from tests.mutation.operators import aimed, aimed_trial, line_table, touched
from tests.mutation.operators.fault import Change, Fault
from tests.mutation.operators.population import ROOT
from tests.mutation.operators.recorder import Recorder
from tests.mutation.operators.touched import Best, Timed

OWN = "opfacade/base/strict_json.py"


def best(**lines):
    """{"own_12": [(cost, test), ...]}: tests that run a line of OWN."""
    found = Best(40)
    for name, tests in lines.items():
        for cost, test in tests:
            found.add((OWN, int(name.partition("_")[2])), Timed(cost, cost, test))
    return found


def test_the_cheapest_tests_of_a_line_stay_and_one_of_each_function():
    found = Best(2)
    for cost, test in ((3.0, "t::a"), (1.0, "t::b[1]"), (0.5, "t::b[2]"), (2.0, "t::c"), (9.0, "t::d")):
        found.add(("a.py", 1), Timed(cost, cost, test))
    assert [test.id for test in found.tests("a.py", 1)] == ["t::b[2]", "t::c"]
    assert found.tests("a.py", 2) == []


def test_what_is_written_is_read_again_and_joins(tmp_path):
    one, two = best(own_3=[(1.0, "t::a")]), best(own_3=[(0.5, "t::b")], own_4=[(2.0, "t::a[x]")])
    both = touched.joined(json.loads(json.dumps(part.as_json())) for part in (one, two))
    place = tmp_path / "touched.json.gz"
    touched.write(both, place)
    found = touched.read(place)
    assert [test.id for test in found.tests(OWN, 3)] == ["t::b", "t::a"]
    assert found.tests(OWN, 4) == [Timed(2.0, 2.0, "t::a[x]")]


def line_of(words, file=OWN):
    return next(number for number, text in enumerate((ROOT / file).read_text().splitlines(), 1) if words in text)


def test_a_line_that_nothing_runs_has_the_tests_of_its_function_and_a_constant_those_of_its_name():
    inside, used = line_of("text = text.decode()"), line_of("range(MAX_DEPTH")
    other = line_of("def _integer") + 1
    found = best(**{f"own_{inside}": [(1.0, "t::a")], f"own_{used}": [(1.0, "t::depth")], f"own_{other}": [(1.0, "t::digits")]})
    assert [test.id for test in aimed.tests_of(OWN, inside, found)] == ["t::a"]
    assert [test.id for test in aimed.tests_of(OWN, inside + 1, found)] == ["t::a"]
    assert [test.id for test in aimed.tests_of(OWN, line_of("MAX_DEPTH ="), found)] == ["t::depth"]


def test_tests_are_taken_as_long_as_there_is_time_and_the_first_whatever_it_takes(monkeypatch):
    own = [Timed(cost, cost, f"t::{cost}") for cost in (3.0, 4.0, 5.0)]
    assert aimed._cheapest(own, 30, 8.0) == own[:2]
    assert aimed._cheapest(own, 1, 8.0) == own[:1]
    assert aimed._cheapest([Timed(50.0, 50.0, "t::slow")], 30, 8.0)


def test_the_nearest_line_of_a_kernel_with_code_stands_for_one_without():
    file, found = "kernels/common/softmax.cuh", Best(40)
    for line in (10, 16):
        found.add((file, line), Timed(1.0, 1.0, f"t::{line}"))
    assert [test.id for test in aimed.tests_of(file, 12, found)] == ["t::10"]
    assert [test.id for test in aimed.tests_of(file, 15, found)] == ["t::16"]
    assert [test.id for test in aimed.tests_of(file, 13, found)] == ["t::10", "t::16"]
    assert aimed.tests_of("kernels/common/merge.cuh", 12, found) == []


def test_the_table_of_lines_has_rows_of_our_files_alone():
    text = f"""
CU: x.cc:
/usr/include/math.h:
math.h     3    0x10f9    x
{ROOT}/kernels/common/softmax.cuh:
softmax.cuh     12    0x10fe    1    x
softmax.cuh     -     0x1100
{ROOT}/tests/emulator/simt.h:
simt.h     5    0x1104    x
{ROOT}/./csrc/common/ffi.h:
ffi.h     7    0x1104    x
"""
    assert line_table.table(text) == {("kernels/common/softmax.cuh", 12), ("csrc/common/ffi.h", 7)}


def test_the_recorder_counts_lines_of_the_library_alone_and_of_tests_that_pass(tmp_path):
    from opfacade.base import strict_json

    recorder = Recorder(tmp_path)
    code = strict_json.loads.__code__
    recorder.start(code, 3)
    assert not recorder.lines
    for passed in (False, True):
        recorder.test, recorder._passed, recorder.lines = f"t::{passed}", passed, set()
        recorder.start(code, 3)
        recorder.start(best.__code__, 4)
        recorder.end(1.0)
    assert [(line, [test.id for test in recorder.best.tests(*line)]) for line in recorder.best.of] == [((OWN, 3), ["t::True"])]


def test_a_recording_has_the_lines_of_a_kernel_for_its_first_test_and_for_later_ones(tmp_path):
    """The emulator compiles a kernel when the first test launches it."""
    file = "tests/families/moe/test_moe_kernels.py"
    of_sums = kernels.test_scores_whose_sum_is_zero_give_zero_weights
    of_replicas = kernels.test_a_number_of_replicas_out_of_range_is_treated_as_one
    names = (of_sums.__name__, of_replicas.__name__)
    words = ["-p", "tests.mutation.operators.recorder", f"--touched={tmp_path / 'parts'}", "-k", " or ".join(names), file]
    pytest_words = ["pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts="]
    done = subprocess.run([sys.executable, "-m", *pytest_words, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    parts = [json.loads(part.read_text()) for part in (tmp_path / "parts").iterdir()]
    found = touched.joined(parts)
    of_kernels = [found.tests(*line) for line in found.of if line[0] == "kernels/moe/route.cuh"]
    assert any(all(any(name in test.id for test in tests) for name in names) for tests in of_kernels)


@pytest.mark.parametrize(
    ("tests", "outcome", "by"),
    [
        (["tests/base/test_strict_json.py::test_what_is_not_strict_is_a_value_error"], "caught", "value_error["),
        (["tests/base/test_regular_files.py::test_a_link_is_followed_unless_told_otherwise"], "survived", ""),
        ([], "undecided", "no test"),
    ],
)
def test_a_fault_is_judged_by_the_tests_of_its_line(tests, outcome, by, tmp_path, monkeypatch):
    text, old = (ROOT / OWN).read_text(), "text = text.decode()"
    at = text.index(old)
    fault = Fault(OWN, text.count("\n", 0, at) + 1, Change("lost call", at, at + len(old), "text = text"), old, "0" * 16)
    monkeypatch.setattr(aimed, "tests_of", lambda file, line, best: [Timed(1.0, 5.0, one) for one in tests])
    row = aimed_trial.AimedTrial(run.Place(tmp_path, "host"), 100.0, Best(1)).row(fault, "", 100.0)
    assert row.outcome == outcome
    assert by in row.by
