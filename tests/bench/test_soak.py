"""A soak run of some seconds finds no wrong, lost, hung or growing call, and it reports such calls if they occur."""

import itertools
import json
import subprocess
import sys
import time

import pytest

from bench import soak, soaking


def test_some_seconds_of_processes_threads_forks_resets_and_sweeps(capsys):
    argv = ["--processes", "2", "--threads", "2", "--minutes", "0.07", "--plans", "100", "--sizes", "20"]
    assert soak.main(argv) == 0, capsys.readouterr().out
    assert capsys.readouterr().out.count("runs ") == 2


@pytest.mark.parametrize(("minutes", "plans"), [(30.0, 4096), (4.0, 600), (0.4, 64)])
def test_a_short_soak_keeps_so_few_plans_that_its_second_half_begins_with_all_of_them(minutes, plans):
    """A process on a GPU selected 60 sizes a second, each of 36 KB: after 24 s, 4,096 plans were still being collected."""
    assert soak.plans_of(minutes) == plans


SOUND = {"runs": 5, "forks": 1, "sweeps": 1, "errors": [], "grown_bytes": 0, "resident_bytes": 1}
WRONG = [({"runs": 0}, "nothing ran"), ({"grown_bytes": 2**30}, "memory grew"), ({"errors": ["bits differ"]}, "bits differ")]


@pytest.mark.parametrize(("change", "told"), WRONG)
def test_a_process_that_went_wrong_is_a_fault(change, told):
    assert soak.judged(SOUND) == []
    assert [told in fault for fault in soak.judged(SOUND | change)] == [True]


def test_a_count_that_is_lost_is_a_fault(tmp_path):
    path = tmp_path / "counts.jsonl"
    assert soak.lost(path, 3) != []
    line = {"pid": 1, "since": 1, "time": 1.0, "skus": {"a": {"runs": 2}}, "refusals": {}, "counts": {}}
    path.write_text("".join(json.dumps(line | {"pid": pid}) + "\n" for pid in (1, 2)))
    assert soak.lost(path, 4) == []
    assert soak.lost(path, 5) == ["5 runs were made, 4 were counted"]
    path.write_text(path.read_text() + "{torn\n")
    assert soak.lost(path, 4) == ["1 broken lines of counters"]


def test_a_wrong_result_ends_the_process_with_an_error(monkeypatch):
    monkeypatch.setattr(soaking, "RUNS", (lambda random, device: 1 / 0,))
    work = soaking.Soaking(0, 5.0)
    work.loop(work.run, 0, 0.0)
    assert work.errors == ["ZeroDivisionError: division by zero"]


def test_a_child_that_hangs_is_ended_and_told(monkeypatch):
    monkeypatch.setattr(soaking, "CHILD_SECONDS", 0.2)
    monkeypatch.setattr(soaking, "_child", lambda *given: time.sleep(60))
    monkeypatch.setattr(soaking.signal, "SIGUSR1", 0)
    work = soaking.Soaking(0, 5.0)
    work.loop(work.fork, 0, 0.0)
    assert "ended with -1" in work.errors[0]


def started(code):
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


BUSY = "import time\nwhile time.process_time() < 1: pass\nprint('done')"


def test_a_process_that_is_late_but_works_is_waited_for_and_one_that_sleeps_hangs(monkeypatch):
    monkeypatch.setattr(soaking, "CHILD_SECONDS", 0.5)
    monkeypatch.setattr(soaking, "LEAST_WORK", 0.005)
    assert soak._ended(started(BUSY), time.monotonic()) == ("done\n", "")
    hangs = started("import time; time.sleep(100)")
    assert soak._ended(hangs, time.monotonic()) is None
    hangs.kill()
    hangs.communicate()


@pytest.mark.parametrize(("step", "seen"), [(1 << 24, True), (0, False), (-(1 << 24), False)])
def test_memory_that_grows_is_seen(monkeypatch, step, seen):
    held = itertools.count(1 << 40, step)
    monkeypatch.setattr(soaking, "resident", lambda: next(held))
    grown, _ = soaking.growth(time.monotonic() + 4.0)
    assert grown > 0 if seen else grown == 0
