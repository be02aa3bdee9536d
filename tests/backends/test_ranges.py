"""Ranges of nodes, and the quotients that need no scaling."""

import math

import pytest

from opfacade.backends.cuda.programs import source
from opfacade.backends.cuda.programs.ranges import is_plain_divisor, range_of
from opfacade.programs.activations import silu
from opfacade.programs.expression import apply, constant, value

X = value("x", "f32")
EXP = apply("exp", X)
BELOW = apply("exp", -abs(X))


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (X, (-math.inf, math.inf)),
        (constant(3.0, "f32"), (3.0, 3.0)),
        (constant("inf", "f32"), (-math.inf, math.inf)),
        (abs(X), (0.0, math.inf)),
        (-abs(X), (-math.inf, 0.0)),
        (EXP, (0.0, math.inf)),
        (BELOW, (0.0, 2.0)),
        (1.0 + BELOW, (1.0, 3.0)),
        (X + X, (-math.inf, math.inf)),
        (apply("select", X < 0.0, BELOW, constant(5.0, "f32")), (0.0, 5.0)),
        (apply("maximum", X, constant(2.0, "f32")), (2.0, math.inf)),
        (apply("minimum", abs(X), constant(2.0, "f32")), (0.0, 2.0)),
        (X * X, (-math.inf, math.inf)),
    ],
)
def test_ranges(node, expected):
    assert range_of(node) == expected


@pytest.mark.parametrize(
    ("divisor", "plain"),
    [
        (1.0 + BELOW, True),
        (1.0 + EXP, False),
        (BELOW, False),
        (X, False),
        (constant(2.0, "f32"), True),
        (constant(0.0, "f32"), False),
    ],
)
def test_a_divisor_is_plain_only_where_its_reciprocal_is_normal(divisor, plain):
    assert is_plain_divisor(divisor) == plain


def printed(node, math):
    return [statement[0] for statement in source.statements([node], ["x"], [], math)]


def test_only_approximate_quotients_are_products():
    assert "div_plain_approx_" in printed(silu(X), "approx")
    assert "div_approx_" in printed(X / (1.0 + EXP), "approx")
    assert "div_" in printed(silu(X), "device")
