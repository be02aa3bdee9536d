"""Values of programs that a reader can compute by hand, far from the values that random inputs reach."""

import math

import pytest
import torch

from opfacade import Plan, Target, recipes
from opfacade.plans._folds.values import evaluation
from opfacade.plans.norm import NormArgs, NormDescriptor
from opfacade.plans.softmax import SoftmaxArgs, SoftmaxDescriptor
from opfacade.programs import integers
from opfacade.programs.evaluate import _within
from opfacade.recipes import shaped

# A mirror at both ends of an axis of 5: 0 1 2 3 4 3 2 1, and again.
MIRRORED = {-13: 3, -9: 1, -8: 0, -5: 3, -4: 4, -1: 1, 0: 0, 4: 4, 5: 3, 8: 0, 9: 1, 12: 4, 13: 3, 16: 0, 41: 1}


@pytest.mark.parametrize("place", MIRRORED)
def test_a_reflected_place_is_right_periods_away(place):
    assert _within(torch.tensor([place]), 5, "reflect").item() == MIRRORED[place]


@pytest.mark.parametrize(
    ("type", "least", "most"), [("i8", -128, 127), ("i16", -32768, 32767), ("u8", 0, 255), ("u16", 0, 65535)]
)
def test_a_float_one_beside_the_range_of_an_integer_becomes_its_end(type, least, most):
    value = torch.tensor([least - 1.0, least - 0.75, least, most, most + 0.75, most + 1.0], dtype=torch.float64)
    assert integers.saturated(value, type).tolist() == [least] * 3 + [most] * 3


@pytest.mark.parametrize(("type", "bits"), [("i8", 7), ("i16", 15), ("i32", 31), ("i64", 63)])
@pytest.mark.parametrize("past", [0, 1])
def test_a_float_past_the_largest_integer_becomes_the_largest(type, bits, past):
    value = torch.tensor([2.0**bits * (1 + past), -(2.0**bits) * (1 + past)], dtype=torch.float64)
    assert integers.saturated(value, type).tolist() == [2**bits - 1, -(2**bits)]


@pytest.mark.parametrize(("type", "bits"), [("u8", 8), ("u16", 16), ("u32", 32), ("u64", 64)])
@pytest.mark.parametrize("past", [0, 1])
def test_a_float_past_the_largest_count_becomes_the_largest(type, bits, past):
    """The float below 2^bits is exact. An int64 represents u64 by its bits."""
    least = 2.0**bits * (1 + past)
    value = torch.tensor([least, -least, -0.5, math.nextafter(2.0**bits, 0)], dtype=torch.float64)
    inner = int(math.nextafter(2.0**bits, 0))
    assert [found % 2**64 for found in integers.saturated(value, type).tolist()] == [2**bits - 1, 0, 0, inner]


def in_f32(program, call):
    """The result with every node in its own type, as an f32 machine computes it."""
    return evaluation(program, call, None)(program.resolved[1][0])


LEVELS = [1e6, -1e6, 2.0**23, 2.0**24, 1e30]


@pytest.mark.parametrize("level", LEVELS)
def test_a_log_softmax_of_a_high_row_subtracts_the_maximum_first(level):
    """Seven equal scores have the share 1/7 at any level; max + log(7) would lose this to f32 rounding."""
    problem = SoftmaxDescriptor(shape=(2, 7), dtype="f32", log=True)
    args = SoftmaxArgs(x=torch.full((2, 7), level), out=torch.empty(2, 7))
    found = in_f32(problem.folded(), problem.fold_args(args))
    assert (found + math.log(7)).abs().max() < 2e-7


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["log_softmax", "cross_entropy"])
def test_a_recipe_of_a_high_row_subtracts_the_maximum_first(name, level):
    x = torch.full((2, 7), level)
    if name == "log_softmax":
        problem, given, want = recipes.log_softmax(shaped(2, 7, dtype="f32"), 1), {"input": x}, -math.log(7)
    else:
        target = torch.tensor([3, 6])
        problem = recipes.cross_entropy(shaped(2, 7, dtype="f32"), shaped(2, dtype="i64"), reduction="none")
        given, want = {"input": x, "target": target}, math.log(7)
    shape = (2, 7) if name == "log_softmax" else (2,)
    found = in_f32(problem.folded(), problem.fold_args(problem.args(**given, out=torch.empty(shape))))
    assert (found - want).abs().max() < 2e-7


def test_a_layer_norm_of_the_rounded_sum_takes_its_mean():
    """256 + 1 is 256 in bf16, so the mean is 128 and the elements are one deviation from it; with 257 they would not be."""
    fields = {"kind": "layer", "total_num_rows": 1, "hidden": 2, "dtype": "bf16", "weight": "none", "eps": 0}
    plan = Plan.select(NormDescriptor(residual=True, residual_sum="rounded", **fields), target=Target.cpu())
    x, residual = (torch.tensor([[n, 0.0]], dtype=torch.bfloat16) for n in (256.0, 1.0))
    out = torch.empty_like(x)
    plan.run(NormArgs(x=x, residual=residual, out=out))
    assert (out.tolist(), residual.tolist()) == ([[1.0, -1.0]], [[256.0, 0.0]])
