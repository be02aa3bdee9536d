"""Sums of counts: seconds of builds add up, names stay separate, and a file's entry counts once if it is a valid count."""

import json
import threading

import pytest

from opfacade import telemetry
from opfacade.telemetry import histogram
from opfacade.telemetry.file import read

pytestmark = pytest.mark.usefixtures("fresh_telemetry")


def test_seconds_of_builds_add_up():
    for seconds in (0.5, 0.25):
        telemetry.count_build("a", seconds)
    assert telemetry.snapshot()["a"]["builds"] == 2
    assert telemetry.snapshot()["a"]["build_seconds"] == 0.75


def test_names_that_begin_alike_are_two():
    for name in ("tuned_hit", "tuned_miss", "tuned_miss"):
        telemetry.count(name)
    assert telemetry.counts() == {"tuned_hit": 1, "tuned_miss": 2}


def line(pid=1, since=1, **counts):
    return json.dumps({"pid": pid, "since": since, "time": 0, "skus": {}, "refusals": {}, "counts": counts}) + "\n"


def test_two_processes_of_one_id_are_two(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(line(1, 1, n=3) + line(1, 2, n=4) + line(1, 1, n=5) + line(2, 1, n=7))
    total, broken = read(path)
    assert (total["counts"], broken) == ({"n": 5 + 4 + 7}, 0)


@pytest.mark.parametrize("value", [-1, True, "1", None, 2**63, [1]])
def test_what_is_no_count_is_not_added(tmp_path, value):
    path = tmp_path / "t.jsonl"
    path.write_text(line(n=3) + line(pid=2, n=value))
    total, broken = read(path)
    assert (total["counts"], broken) == ({"n": 3}, 1)


def test_the_sum_of_times_is_that_of_all_samples():
    stats = telemetry.stats("a")
    threads = [threading.Thread(target=lambda: [stats.time(2.5) for _ in range(100)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = telemetry.snapshot()["a"]["latency"]
    assert (found["samples"], found["sum_us"]) == (400, 1000.0)
    assert [histogram.LATENCY_ENDS[i] for i, n in enumerate(found["counts"]) if n] == [5.0]
