"""A recorded run says which test files are about a function: those that start it and few others, and end soon."""

import json

import pytest

from tests.mutation.operators import judged, touched
from tests.mutation.operators.recorder import Recorder

TEXT = """\
limit = 3

class Queue:
    def push(self, item):
        def places():
            return 7
        return places()

    size = 2

async def drain(queue):
    return queue
"""


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (1, []),
        (4, ["Queue.push"]),
        (6, ["Queue.push.<locals>.places", "Queue.push"]),
        (7, ["Queue.push"]),
        (9, []),
        (12, ["drain"]),
    ],
)
def test_a_line_has_the_names_that_python_gives_its_functions(line, names):
    assert touched.names_at(TEXT, line) == names


def run(**seconds):
    started = {"narrow": [("a.py", "f")], "broad": [("a.py", "f"), ("a.py", "g"), ("b.py", "h")], "slow": [("a.py", "f")]}
    return touched.Run(started, {"broad": ["k.cuh"]}, {"narrow": 1.0, "broad": 1.0, "slow": 100.0} | seconds)


def test_a_file_of_tests_that_starts_little_and_ends_soon_is_first():
    found = touched.ranked(run())
    assert found["a.py"] == {"f": ["narrow", "broad", "slow"], "g": ["broad"]}
    assert found["k.cuh"] == {"": ["broad"]}
    assert touched.ranked(run(slow=0.5))["a.py"]["f"] == ["slow", "narrow", "broad"]


def test_no_function_has_more_tests_than_are_kept():
    many = {f"t{at}": [("a.py", "f")] for at in range(20)}
    found = touched.ranked(touched.Run(many, {}, dict.fromkeys(many, 1.0)))
    assert len(found["a.py"]["f"]) == touched.MOST


def test_workers_of_one_run_are_joined():
    one = {"started": {"t": [["a.py", "f"]]}, "built": {"t": ["k.cuh"]}, "seconds": {"t": 1.0}}
    two = {"started": {"t": [["a.py", "g"]], "u": [["a.py", "f"]]}, "built": {}, "seconds": {"t": 2.0, "u": 4.0}}
    found = touched.joined([one, two])
    assert found.started == {"t": {("a.py", "f"), ("a.py", "g")}, "u": {("a.py", "f")}}
    assert (found.built, found.seconds) == ({"t": {"k.cuh"}}, {"t": 3.0, "u": 4.0})


def test_what_is_written_names_tests_by_numbers(tmp_path, monkeypatch):
    """A file of tests that has gone is left out."""
    own, line = "opfacade/base/strict_json.py", 1
    here, gone = "tests/base/test_strict_json.py", "tests/base/test_gone.py"
    names = {name: [gone, here] for name in ("parsed", "f")}
    place = tmp_path / "touched.json"
    place.write_text(touched.written({own: names, "kernels/k.cuh": {"": [here]}}))
    assert json.loads(place.read_text())["functions"][own]["f"] == [0, 1]
    monkeypatch.setattr(touched, "PLACE", place)
    monkeypatch.setattr(touched, "names_at", lambda text, line: ["outer.inner", "f"])
    touched._recorded.cache_clear()
    assert touched.tests_of(own, line) == [here]
    assert touched.tests_of("kernels/k.cuh", line) == [here]
    assert touched.tests_of("kernels/other.cuh", line) == []
    touched._recorded.cache_clear()


def test_a_recorded_file_comes_before_one_that_only_lies_beside(monkeypatch):
    far = "tests/cli/test_cache.py"
    monkeypatch.setattr(touched, "tests_of", lambda file, line: [far])
    assert far in judged.tests_of("opfacade/programs/evaluate.py", 100, gpu=False)[:2]


def test_the_recorder_counts_functions_of_the_library_alone(tmp_path):
    from opfacade.base import strict_json

    recorder = Recorder(tmp_path)
    functions = [value for value in vars(strict_json).values() if hasattr(value, "__code__")]
    recorder.start(functions[0].__code__)
    assert not recorder.started
    recorder.test = "tests/test_some.py"
    recorder.start(functions[0].__code__)
    recorder.start(run.__code__)
    assert recorder.started == {"tests/test_some.py": {("opfacade/base/strict_json.py", functions[0].__qualname__)}}
