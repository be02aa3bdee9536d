"""The time model of ops over ranks, against calculations by hand."""

import pytest

from bench.ranks import model, protocol
from opfacade.plans.collective import AllReduceNormDescriptor, MergeAcrossDescriptor

WIRE = model.Wire(alone=4.0, behind=2.0, gb_per_s=200.0)


def test_a_round_takes_its_latency_and_its_bytes():
    """3 peers send 1 MB each: 15 us at 200 GB/s, after 4 us and two further peers."""
    assert model.us_of([10**6], model.Host(4), WIRE) == pytest.approx(4 + 2 * model.US_OF_A_PEER + 15)
    assert model.us_of([10**6, 2000], model.Host(2), WIRE) == pytest.approx(4 + 5 + 2 + 0.01)


def test_another_host_is_reached_by_the_network_beside_the_links():
    network = model.Network(us=20.0, gb_per_s=50.0)
    assert model.us_of([1000], model.Host(16, 2), WIRE, network) == pytest.approx(20 + 8 * 1000e-3 / 50)
    slow = model.Wire(alone=100.0, behind=2.0, gb_per_s=200.0)
    assert model.us_of([1000], model.Host(2, 1), slow, network) == pytest.approx(100 + 1000e-3 / 200)


def test_bytes_of_rounds_are_those_that_the_ops_send():
    norm = {"world": 4, "total_num_rows": 10, "hidden": 64, "dtype": "bf16", "residual": "replicated"}
    assert model.rounds_of(AllReduceNormDescriptor(**norm, steps="one_shot")) == [10 * 128]
    assert model.rounds_of(AllReduceNormDescriptor(**norm, steps="two_shot")) == [3 * 128, 3 * 256]
    merge = MergeAcrossDescriptor(world=2, states=3, total_num_rows=5, num_heads=8, head_dim=64, dtype="f32", scatter="heads")
    assert model.rounds_of(merge) == [3 * 5 * 4 * (256 + 4)]


def test_a_line_of_latency_and_bandwidth_is_found_again():
    sizes = [2.0**i for i in range(10, 22)]
    start, slope = protocol.line_of(sizes, [3.5 + size / 300e3 for size in sizes])
    assert start == pytest.approx(3.5)
    assert slope == pytest.approx(1 / 300e3)


def test_every_place_of_the_table_has_a_time():
    for times in model.table(WIRE).values():
        assert list(times) == list(model.PLACES)
        assert times["2 GPUs"] < times["8 GPUs"] < times["2 hosts of 8"]
