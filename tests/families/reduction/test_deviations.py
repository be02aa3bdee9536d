"""Squared deviations of rows whose mean is far from zero, and softmax of rows whose maximum is NaN or infinite.

The expected values come from fp64 or are written out.
"""

import math

import pytest
import torch

from opfacade.testing import inputs
from tests import emulator
from tests.families.reduction.forms import reducer, softmax

INF, NAN = math.inf, math.nan


@emulator.needed
@pytest.mark.parametrize("width", [2, 7, 33, 285, 1200])
@pytest.mark.parametrize("offset", [0.0, 4096.0, -3.0e6])
def test_a_mean_far_from_zero_takes_no_digit_of_the_deviations(width, offset):
    """The sum of squares minus the square of the sum would lose all digits: near 3e6 squared, f32 numbers are a million apart.
    The mean itself is rounded, which shifts deviations of 64."""
    problem = reducer("welford", "f32", (5, width))
    args = inputs.make_args(problem, 3)
    args.in_0.copy_(torch.randn(5, width, generator=torch.Generator().manual_seed(1)) * 64 + offset)
    emulator.subject(problem).run(args)
    exact = args.in_0.double()
    mean = exact.mean(1)
    assert torch.allclose(args.out_0.double(), mean, rtol=2.0**-21, atol=1e-5)
    assert torch.allclose(
        args.out_1.double(), (exact - mean[:, None]).square().sum(1), rtol=2.0**-18 + abs(offset) * 2.0**-27, atol=0
    )


@emulator.needed
def test_equal_elements_have_deviation_zero():
    problem = reducer("welford", "f32", (3, 137))
    args = inputs.make_args(problem, 3)
    args.in_0.copy_(torch.tensor([[0.1], [-7.3e30], [1.5e-40]]).expand(3, 137))
    emulator.subject(problem).run(args)
    assert args.out_0.tolist() == args.in_0[:, 0].tolist()
    assert args.out_1.tolist() == [0.0, 0.0, 0.0]


@emulator.needed
@pytest.mark.parametrize("order", ["first", "last"])
def test_a_late_warp_reads_maxima_while_the_first_warp_stores_sums(order, monkeypatch):
    """The first warp has the maximum. Warps run one after the other, in ascending or descending order."""
    if order == "last":
        emulator.last_first(monkeypatch)
    problem = softmax((1, 1600))
    args = inputs.make_args(problem, 3)
    args.in_0.copy_(torch.linspace(3.0, -3.0, 1600)[None])
    emulator.subject(problem).run(args)
    assert torch.allclose(args.out_0.double(), args.in_0.double().softmax(-1), rtol=1e-6, atol=0)


ROWS = {
    "one infinite": ([1.0, INF, 2.0, 0.0, -1.0], [0.0, NAN, 0.0, 0.0, 0.0]),
    "one minus infinite": ([0.0, -INF, 0.0, -INF, 0.0], [1 / 3, 0.0, 1 / 3, 0.0, 1 / 3]),
    "all minus infinite": ([-INF] * 5, [NAN] * 5),
    "one no number": ([0.0, NAN, 0.0, 1.0, 2.0], [NAN] * 5),
    "far apart": ([0.0, -200.0, 3e38, -3e38, 1.0], [0.0, 0.0, 1.0, 0.0, 0.0]),
}


@emulator.needed
@pytest.mark.parametrize("width", [5, 68, 800], ids=["a lane or two", "lanes", "warps"])
@pytest.mark.parametrize("name", ROWS)
def test_softmax_of_nan_and_infinities(name, width):
    """The special values are at the end of a row of -inf, which contributes nothing."""
    given, wanted = (torch.tensor(row) for row in ROWS[name])
    problem = softmax((2, width))
    args = inputs.make_args(problem, 3)
    args.in_0.fill_(-INF)
    args.in_0[:, -5:] = given
    emulator.subject(problem).run(args)
    assert torch.allclose(args.out_0[:, -5:], wanted.expand(2, 5), rtol=1e-6, atol=0, equal_nan=True)
    rest = NAN if name in ("all minus infinite", "one no number") else 0.0
    if width > 5:
        assert torch.equal(args.out_0[:, :-5].isnan(), torch.full((2, width - 5), math.isnan(rest)))
