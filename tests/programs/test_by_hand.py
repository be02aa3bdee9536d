"""Values of programs that a reader can compute by hand, far from the values that random inputs reach."""

import pytest
import torch

from opfacade import Plan, Target
from opfacade.plans.norm import NormArgs, NormDescriptor
from opfacade.programs import integers
from opfacade.programs.evaluate import _within

# A mirror at both ends of an axis of 5: 0 1 2 3 4 3 2 1, and again.
MIRRORED = {-13: 3, -9: 1, -8: 0, -5: 3, -4: 4, -1: 1, 0: 0, 4: 4, 5: 3, 8: 0, 9: 1, 12: 4, 13: 3, 16: 0, 41: 1}


@pytest.mark.parametrize("place", MIRRORED)
def test_a_reflected_place_is_right_periods_away(place):
    assert _within(torch.tensor([place]), 5, "reflect").item() == MIRRORED[place]


@pytest.mark.parametrize(("type", "bits"), [("i8", 7), ("i16", 15), ("i32", 31), ("i64", 63)])
@pytest.mark.parametrize("past", [0, 1])
def test_a_float_past_the_largest_integer_becomes_the_largest(type, bits, past):
    value = torch.tensor([2.0**bits * (1 + past), -(2.0**bits) * (1 + past)], dtype=torch.float64)
    assert integers.saturated(value, type).tolist() == [2**bits - 1, -(2**bits)]


def test_a_layer_norm_of_the_rounded_sum_takes_its_mean():
    """256 + 1 is 256 in bf16, so the mean is 128 and the elements lie one deviation from it; of 257 they would not."""
    fields = {"kind": "layer", "total_num_rows": 1, "hidden": 2, "dtype": "bf16", "weight": "none", "eps": 0}
    plan = Plan.select(NormDescriptor(residual=True, residual_sum="rounded", **fields), target=Target.cpu())
    x, residual = (torch.tensor([[n, 0.0]], dtype=torch.bfloat16) for n in (256.0, 1.0))
    out = torch.empty_like(x)
    plan.run(NormArgs(x=x, residual=residual, out=out))
    assert (out.tolist(), residual.tolist()) == ([[1.0, -1.0]], [[256.0, 0.0]])
