"""Tests the judge of splits: the time of CTAs that share a device."""

from math import inf

import pytest

from tests.support.block_times import drained


def test_a_block_alone_is_as_fast_as_it_can_be_and_many_share_the_device():
    assert drained([10.0], 4, 1.0, inf) == pytest.approx(10)
    assert drained([10.0] * 8, 4, 1.0, inf) == pytest.approx(20)
    assert drained([10.0] * 8, 4, inf, 2.0) == pytest.approx(40)
    assert drained([3.0, 4.0], 2, inf, 1.0) == pytest.approx(7)


def test_the_longest_block_last_is_waited_for():
    assert drained([1, 1, 1, 9], 2, 1.0, inf) == pytest.approx(10)
    assert drained([9, 1, 1, 1], 2, 1.0, inf) == pytest.approx(9)
    assert drained([], 2, 1.0, 1.0) == 0
