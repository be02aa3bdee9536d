"""The model of a tile's time: bounded by what shared memory needs, and it says why boxes are as fine as they are."""

from bench.mla_model import PRODUCTS, SHARED, cycles


def test_no_order_is_faster_than_shared_memory_allows():
    assert SHARED > PRODUCTS
    for latency in (0, 700, 1400):
        assert cycles(latency=latency) >= SHARED - 1


def test_a_box_of_one_panel_lets_scores_begin_early():
    assert cycles(panels=1) < 0.93 * cycles(panels=4)
    assert cycles(panels=1) < 2600  # what the goal of 660 TFLOP/s allows


def test_what_is_slower_makes_a_tile_slower():
    assert cycles(latency=3000) > cycles(latency=1000)
    assert cycles(rate=16) > cycles(rate=48)
    assert cycles(softmax=3000) > cycles(softmax=700)
