"""How the benchmarks time contenders: bench/interleaved.py, with a simulated clock."""

from __future__ import annotations

import pytest

from bench import interleaved
from opfacade.testing import timing as bench


@pytest.fixture
def calls(monkeypatch):
    """Every call in order, and whether the cache was cleared before. The n-th call of all takes n microseconds."""
    seen = []

    def time_gpu(call, samples, warmup, clean):
        assert (samples, warmup) == (1, 0)
        seen.append((call(), clean))
        return bench._summary([float(len(seen))])

    monkeypatch.setattr(bench, "time_gpu", time_gpu)
    monkeypatch.setattr(bench, "time_host", lambda call, samples: bench._summary([samples + 0.5]))
    return seen


def contender(name, host=0):
    return interleaved.Contender({"impl": name}, lambda: name, host)


def test_contenders_take_turns_and_not_always_in_the_same_order(calls):
    first, second = interleaved.timed([contender("a"), contender("b")], interleaved.DIRTY)
    names = [name for name, _ in calls][2:]  # the first call of each contender includes lazy initialisation
    rounds = [tuple(names[i : i + 2]) for i in range(0, len(names), 2)]
    assert len(rounds) == interleaved.SAMPLES
    assert set(rounds) == {("a", "b"), ("b", "a")}
    assert (first["impl"], second["impl"]) == ("a", "b")
    assert first["us"]["samples"] == second["us"]["samples"] == interleaved.SAMPLES
    assert abs(first["us"]["median"] - second["us"]["median"]) <= 2, "a drift hits both alike"


def test_a_time_is_of_its_own_contender_and_its_own_way(calls):
    (row,) = interleaved.timed([contender("a")], interleaved.BOTH)
    kinds = [clean for _, clean in calls]
    assert kinds == [False] * (interleaved.SAMPLES + 1) + [True] * (interleaved.SAMPLES + 1)
    assert row["dirty_us"]["p90"] < row["clean_us"]["p10"]


def test_the_host_is_timed_where_asked(calls):
    with_host, without = interleaved.timed([contender("a", host=7), contender("b")], interleaved.DIRTY)
    assert with_host["run_host_us"] == 7.5
    assert "run_host_us" not in without
