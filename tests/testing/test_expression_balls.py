"""Radii of single steps of an expression, against the largest change over the interval of the score, by hand."""

import math

import pytest
import torch

from opfacade.testing.families.attention.expression_bound import Ball, Roundoff, bound
from opfacade.variant import exp2, log2, maximum, minimum, score, tanh

EXACT = Roundoff(0.0, 0.0)
U, TINY = 2.0**-24, 2.0**-149


def radius(node, value, r, unit=EXACT):
    ball = Ball(*(torch.tensor([x], dtype=torch.float64) for x in (value, r)))
    return float(bound(node, {"q_len": torch.tensor(1)}, ball, unit).r)


STEPS = {
    "a product": (score * score, 3.0, 0.1, 3.1**2 - 9.0),
    "a product with a constant": (score * -4.0, 3.0, 0.1, 0.4),
    "a sum": (score + score, 3.0, 0.1, 0.2),
    "a difference": (1.0 - score, 3.0, 0.1, 0.1),
    "a quotient": (1.0 / score, 2.0, 0.5, 1 / 1.5 - 1 / 2.0),
    "a quotient by what may be 0": (1.0 / score, 0.1, 0.2, math.inf),
    "a quotient by what may just be 0": (1.0 / score, 0.5, 0.5, math.inf),
    "the least of a constant and a score": (minimum(4.0, score), 3.0, 0.1, 0.1),
    "the least of a score and a constant": (minimum(score, 4.0), 3.0, 0.1, 0.1),
    "the largest of a constant and a score": (maximum(4.0, score), 5.0, 0.1, 0.1),
    "a size": (abs(score), -3.0, 0.1, 0.1),
    "a power": (exp2(score), 1.0, 0.5, 2**1.5 - 2.0),
    "a logarithm": (log2(score), 2.0, 1.0, 1.0),
    "a logarithm of what may be 0": (log2(score), 1.0, 2.0, math.inf),
    "tanh near 0": (tanh(score), 0.0, 0.5, 0.5),
    "tanh beside 0": (tanh(score), 1.0, 0.25, 0.25 * (1 - math.tanh(0.75) ** 2)),
    "what f32 does not hold": (score * 3e38, 10.0, 0.0, math.inf),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_radius_is_the_largest_change_over_the_interval(name):
    node, value, r, wanted = STEPS[name]
    assert radius(node, value, r) == pytest.approx(wanted, rel=1e-6, abs=1e-40)


@pytest.mark.parametrize(
    ("node", "value", "result"), [(score * 3.0, 5.0, 15.0), (score + 2.5, 5.0, 7.5), (score / 4.0, 5.0, 1.25)]
)
def test_a_step_is_rounded_once(node, value, result):
    assert radius(node, value, 0.0, Roundoff(U, 0.0)) == pytest.approx(U * result + TINY, rel=1e-9)


def test_a_function_has_an_error_of_its_own():
    unit = Roundoff(U, 2.0**-10)
    assert radius(exp2(score), 2.0, 0.0, unit) == pytest.approx(2.0**-10 * 4.0, rel=1e-6)
    assert radius(tanh(score), 2.0, 0.0, unit) == pytest.approx(2.0**-10, rel=1e-6)


@pytest.mark.parametrize("node", [abs(score), -score, minimum(score, 9.0), maximum(score, -9.0)])
def test_a_step_that_only_chooses_is_exact(node):
    assert radius(node, 5.0, 0.0, Roundoff(U, 2.0**-10)) == 0.0
