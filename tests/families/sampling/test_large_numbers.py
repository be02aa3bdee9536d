"""Unfiltered races of numbers near the largest: the definition clamps a logit before the division."""

import pytest
import torch

from opfacade import Plan, Target
from tests import emulator
from tests.families.sampling.calls import call, drawn, split_as
from tests.families.sampling.test_emulated import run

pytestmark = emulator.needed
EDGE, LOWEST = -(2.0**127), torch.finfo(torch.float32).min
LATE = 1000  # a token whose group is not among the first groups, which are examined whatever their bounds


def equal_once_clamped(dtype=torch.float32):
    """Two candidates with one adjusted logit; a bound computed from the raw number would lose the second."""
    x = torch.full((1, 2048), -torch.inf, dtype=dtype)
    x[0, 0], x[0, LATE] = EDGE, torch.finfo(dtype).min
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1e31, 1e38])
def test_a_finite_number_below_the_range_is_the_lowest_of_it(temperature, dtype):
    n, x = 64, equal_once_clamped(dtype)
    given = {"seed": list(range(n)), "temperature": temperature, "indices": torch.zeros(n, dtype=torch.int32), "rows": n}
    token = run(x, **given).token
    assert set(token.tolist()) == {0, LATE}
    if temperature == 1e38:  # no noise is rounded away
        assert torch.equal(token, drawn(x, **given).token)
        assert 16 < (token == LATE).sum() < 48


@pytest.mark.parametrize("temperature", [1.0, 3.0, 2.0**-20, 1e31])
def test_a_list_without_room_of_the_lowest_numbers_loses_no_group(temperature):
    """All groups except the first have the bound of the winner, so the list overflows and is rebuilt."""
    x = torch.full((1, 16384), LOWEST)
    x[0, :512] = -torch.inf
    with split_as(1, 0):
        token = run(x, temperature=temperature).token
    assert temperature == 1e31 or token[0] == 512  # noise is rounded away


@pytest.mark.parametrize("temperature", [0.0, 2.0**-140, 0.5, 3.0, 1e31])
@pytest.mark.parametrize(
    "adjusted", [{}, {"output_counts": torch.ones(1, 16384, dtype=torch.int32), "repetition": 2.0}], ids=str
)
def test_masks_of_the_lowest_number_hide_no_candidate(adjusted, temperature):
    """Engines mask with finfo.min: few tokens remain, and all of these may win."""
    x = torch.full((1, 16384), LOWEST)
    x[0, 9000:9010] = torch.linspace(-2.0, 2.0, 10)
    given = adjusted | {"temperature": temperature}
    descriptor, args = call(x, **given)
    with split_as(1, 0):
        token = run(x, **given).token
    Plan.select(descriptor, target=Target.cpu()).run(args)
    assert torch.equal(token, args.token)


def test_a_product_that_is_no_number_hides_no_candidate():
    """The reciprocal of the temperature is infinite, and each candidate that may win is 0; the first one has a good key."""
    x = torch.full((1, 16384), -1.0)
    x[0, 0], x[0, 9000:9400] = 0.0, 0.0
    given = {"seed": [0, 1, 2, 3], "temperature": 2.0**-140, "indices": torch.zeros(4, dtype=torch.int32), "rows": 4}
    with split_as(1, 0):
        token = run(x, **given).token
    assert torch.equal(token, drawn(x, **given).token)
    assert (token >= 9000).all()
