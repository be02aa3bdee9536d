"""The race of candidates: turns, its end, eliminated candidates, and agreement of two races."""

import random

import pytest

from opfacade.select.decision import decide
from opfacade.tune.measure import MeasureEffort, host_timer, measure, race


class Track:
    """Calls that only record who ran; a timer that determines the time of each, with seeded noise."""

    def __init__(self, times, spread=0.0, seed=0):
        self.times, self.spread, self.rng, self.ran = times, spread, random.Random(seed), []

    @property
    def calls(self):
        return {name: lambda name=name: self.ran.append(name) for name in self.times}

    def timer(self, call):
        call()
        return self.times[self.ran[-1]] * self.rng.lognormvariate(0, self.spread)

    def race(self, effort=None, incumbent=None):
        return race(self.calls, self.timer, effort, incumbent)


def test_every_call_is_run_once_untimed_and_then_in_turns():
    track = Track({"a": 10.0, "b": 11.0, "c": 12.0}, spread=0.3)
    samples = track.race(MeasureEffort(least=12, most=20))
    assert track.ran[:3] == ["a", "b", "c"]
    turns = [track.ran[i : i + 3] for i in range(3, 3 + 12 * 3, 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1
    assert {name: len(s) for name, s in samples.items()} == {name: (len(track.ran) - 3) / 3 for name in "abc"}


def test_a_clear_race_ends_after_the_least_rounds():
    samples = Track({"a": 10.0, "b": 8.0}, spread=0.001).race(MeasureEffort(least=12, most=60))
    assert {len(s) for s in samples.values()} == {12}


def test_a_race_near_the_margin_goes_on():
    samples = Track({"a": 100.0, "b": 97.0}, spread=0.05).race(MeasureEffort(least=12, most=60))
    assert {len(s) for s in samples.values()} == {60}


def test_whoever_is_hopeless_takes_no_further_turn():
    samples = Track({"a": 10.0, "b": 10.2, "c": 40.0}, spread=0.05).race(MeasureEffort(least=12, most=40))
    assert len(samples["c"]) == 12
    assert len(samples["a"]) == len(samples["b"]) > 12


def test_one_call_alone_can_be_raced():
    assert len(Track({"a": 3.0}).race(MeasureEffort(least=5, most=9))["a"]) >= 5


def drift(track):
    """A timer of a machine that gets slower all the time."""
    return lambda call: track.timer(call) * (1 + 0.01 * len(track.ran))


def test_a_drift_hits_all_alike():
    track = Track({"a": 10.0, "b": 10.0})
    samples = race(track.calls, drift(track), MeasureEffort(least=40, most=40))
    measured = [measure(name, s, 0.0) for name, s in samples.items()]
    assert measured[0].median_us == pytest.approx(measured[1].median_us, rel=0.03)


def choice(times, spread, seed):
    samples = Track(times, spread, seed).race()
    return decide([measure(name, s, 0.0) for name, s in samples.items()]).winner


@pytest.mark.parametrize("spread", [0.002, 0.01])
def test_two_tunings_of_one_set_agree(spread):
    """Gains drawn evenly from -10 % to 20 %: only gains near the margin may flip."""
    rng, same, n = random.Random(7), 0, 300
    for entry in range(n):
        times = {"default": 100.0, **{f"v{i}": 100.0 * (1 - rng.uniform(-0.1, 0.2)) for i in range(3)}}
        same += choice(times, spread, 2 * entry) == choice(times, spread, 2 * entry + 1)
    print(f"spread {spread}: {same / n:.1%} agree")
    assert same / n >= 0.98


def test_the_clock_of_the_host_measures_what_takes_time():
    quick, slow = (min(host_timer(lambda n=n: sum(range(n))) for _ in range(5)) for n in (10, 300_000))
    assert 0 < quick < slow
