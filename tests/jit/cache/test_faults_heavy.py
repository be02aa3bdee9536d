"""The figures of docs/cache.md: minutes of work, run with --heavy. OPFACADE_RECORD names the JSON file for the results."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from opfacade import jit
from opfacade.jit import JitSpec, cache, fault_points
from opfacade.jit.cache import upkeep
from tests.jit.cache.test_cache_races import together
from tests.jit.conftest import TINY
from tests.jit.fakes import alive, eventually, join, start, working_below

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]


def record(**figures):
    """Adds figures to the JSON file that OPFACADE_RECORD names."""
    if place := os.environ.get("OPFACADE_RECORD"):
        path = Path(place)
        known = json.loads(path.read_text()) if path.exists() else {"machine": "2-core x86-64, no GPU", "figures": {}}
        known["figures"].update(figures)
        path.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


def tiny(value):
    return JitSpec.of("tiny", "testing/tiny", "sm_80", value=value)


def test_64_processes_compile_once(toolkit):
    toolkit.mode("sleep 0.3")
    compiles = []
    for value in range(5):
        before, started = len(toolkit.calls()), time.monotonic()
        statuses = together(64, lambda _, value=value: jit.load(tiny(value)))
        assert statuses == [0] * 64
        compiles.append(len(toolkit.calls()) - before)
        seconds = time.monotonic() - started
    assert compiles == [1] * 5
    left = len(list((cache.root() / "tmp").iterdir()))
    assert left == 0
    record(
        cold_processes={
            "processes": 64,
            "rounds": 5,
            "compiles": compiles,
            "failures": 0,
            "last_round_seconds": round(seconds, 2),
            "left": left,
        }
    )


def test_64_processes_without_locks_publish_one_entry(toolkit):
    def unlocked(_):
        def hook(step):
            if step == "lock.take":
                raise OSError(37, "No locks available")

        fault_points.hook = hook
        jit.load(TINY)

    assert together(64, unlocked) == [0] * 64
    assert upkeep.verify(cache.shared()) == {}
    assert len(cache.shared().published()) == 1
    record(without_locks={"processes": 64, "compiles": len(toolkit.calls()), "published": 1, "failures": 0})


def test_200_kills_leave_nothing_invalid_and_nothing_running(toolkit, monkeypatch):
    rng, alive_when_hit, invalid, failed, orphans = random.Random(0), 0, 0, 0, 0
    toolkit.mode("sleep 0.05")
    monkeypatch.setattr("opfacade.jit.cache.stale_entries._UNLOCKED_GRACE_SECONDS", 0.0)
    for number in range(200):
        child = start(group_leader, number)
        time.sleep(rng.uniform(0.0, 0.45))
        alive_when_hit += alive(child)
        (os.killpg if number % 2 and os.getpgid(child) == child else os.kill)(child, signal.SIGKILL)
        join([child])
        orphans += not eventually(lambda: not working_below(cache.root()), 2)
        invalid += len(upkeep.verify(cache.shared()))
        failed += join([start(jit.load, tiny(number))]) != [0]
    cache.shared().sweep()
    left = len(list((cache.root() / "tmp").iterdir()))
    figures = {"kills": 200, "alive_when_hit": alive_when_hit, "invalid_entries": invalid, "failed_restarts": failed}
    record(kills={**figures, "compilers_alive_after_2_s": orphans, "staging_left": left})
    assert (invalid, failed, orphans, left) == (0, 0, 0, 0)
    assert alive_when_hit > 50


def group_leader(number):
    os.setpgid(0, 0)
    jit.build(tiny(number))


@pytest.mark.parametrize("how", ["truncations", "flips"])
def test_400_corrupted_entries_are_rebuilt(toolkit, how):
    rng = random.Random(1)
    so = jit.build(TINY)
    good = so.read_bytes()
    healed, dead = 0, 0
    for number in range(400):
        so.chmod(0o600)
        if how == "flips":
            place = rng.randrange(len(good))
            so.write_bytes(good[:place] + bytes([good[place] ^ 1 << rng.randrange(8)]) + good[place + 1 :])
        else:
            so.write_bytes(good[: len(good) * number // 400])
        dead += join([start(jit.load, TINY)]) != [0]
        healed += so.read_bytes() == good
    record(**{how: {"corruptions": 400, "healed": healed, "dead_processes": dead}})
    assert (healed, dead) == (400, 0)
    assert upkeep.verify(cache.shared()) == {}


def test_100_interrupts_leave_no_files(toolkit):
    rng, left, failed = random.Random(2), 0, 0
    toolkit.mode("sleep 0.05")

    def interrupted(number):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            jit.build(tiny(number))
        except KeyboardInterrupt:
            time.sleep(0)

    for number in range(100):
        child = start(interrupted, number)
        time.sleep(0.05 + rng.uniform(0.0, 0.4))
        os.kill(child, signal.SIGINT)
        join([child])
        left += len(list((cache.root() / "tmp").glob("*"))) + len(working_below(cache.root()))
        failed += join([start(jit.build, tiny(number))]) != [0]
    record(interrupts={"interrupts": 100, "left": left, "failed_restarts": failed})
    assert (left, failed) == (0, 0)
    assert upkeep.verify(cache.shared()) == {}
