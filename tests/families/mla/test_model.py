"""The model of a tile's time: bounded by shared memory traffic and products, and it says when the weights' time is exposed."""

from typing import get_args

from bench.mla_model import PRODUCTS, SHARED, Show, cycles

MEASURED = {"put": 1950, "asked": 1500, "made": 1700}  # approximate cycles on one H200


def test_no_schedule_is_faster_than_shared_memory_and_products():
    assert SHARED > PRODUCTS
    for show in get_args(Show):
        for rate in (48, 96):
            assert cycles(show, latency=0, rate=rate, softmax=0, asking=0, signal=0) >= SHARED


def test_copies_take_shared_memory_bandwidth_and_time():
    assert cycles(softmax=0) > 1.05 * (20 * 19 + 16 * 24 + 512)  # products alone
    assert cycles(rate=16) >= 36 * 1024 / 16 - 1


def test_the_model_agrees_with_the_measured_times_within_15_percent():
    for show in get_args(Show):
        assert abs(cycles(show) / MEASURED[show] - 1) < 0.15


def test_publishing_weights_after_the_next_scores_are_issued_is_fastest():
    for latency in (700, 1000, 1600):
        asked = cycles("asked", latency=latency)
        assert 1.05 * asked < cycles("made", latency=latency)
        assert 1.25 * asked < cycles("put", latency=latency)


def test_higher_latencies_make_a_tile_slower():
    usual = cycles()
    assert cycles(latency=6000) > 1.1 * usual
    assert cycles(rate=16) > 1.1 * usual
    assert cycles(softmax=1000) > 1.1 * usual


def test_more_than_five_stages_do_not_make_a_tile_faster():
    assert abs(cycles(stages=6) / cycles(stages=5) - 1) < 0.01
    three, four, five = (cycles(stages=stages, latency=3000) for stages in (3, 4, 5))
    assert three > 1.15 * four > 1.15 * 1.1 * five
