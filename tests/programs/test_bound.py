"""The bound: it contains the f32 results of a program, real arithmetic is its centre, and a jump is undecided near its
position.
"""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opfacade.programs import text
from opfacade.programs.activations import ACTIVATIONS, activation
from opfacade.programs.ball import Ball
from opfacade.programs.bound import Bounds, Machine, machine_of, stored
from opfacade.programs.evaluate import Evaluation, Values
from opfacade.programs.expression import apply, constant, ordered, value
from opfacade.programs.operations import FUNCTIONS, OPERATIONS, UNARY_FUNCTIONS
from opfacade.programs.ulps import APPROXIMATE, DEVICE, documented, functions_in
from tests.support import naive_program

X, Y = value("x", "f32"), value("y", "f32")
DEVICE_F32 = machine_of({"u": 2.0**-24, **{f"ulp.{name}": documented(name, "f32") for name in FUNCTIONS}})
F16 = torch.arange(2**16).to(torch.uint16).view(torch.float16)
FINITE = F16[F16.isfinite()].float()


def ball(root, **leaves):
    return Bounds(Values({("input", name): x for name, x in leaves.items()}), DEVICE_F32)(root)


def inside(root, got, found):
    """Where the radius is finite."""
    error = (got.double() - found.v).abs()
    fine = found.r.isfinite() & found.v.isfinite()
    assert bool((error <= found.r)[fine].all()), (root, float((error / found.r)[fine].max()))
    return float(fine.float().mean())


def in_f32(root, **leaves):
    return Evaluation(Values({("input", name): x for name, x in leaves.items()})).own(root)


def test_every_function_has_a_bound_and_a_documented_accuracy():
    assert set(DEVICE) == set(FUNCTIONS)
    assert set(APPROXIMATE) <= set(OPERATIONS)
    assert functions_in(ordered([apply("exp", X) + apply("sin", Y), apply("exp", value("d", "f64"))]), "f32") == ["exp", "sin"]


@pytest.mark.parametrize("op", UNARY_FUNCTIONS)
def test_a_function_of_every_f16_is_within_its_bound(op):
    root = apply(op, X)
    x = FINITE[FINITE.abs() < 87] if op in ("sinh", "cosh") else FINITE  # torch's own overflow too early
    assert inside(root, in_f32(root, x=x), ball(root, x=x)) > 0.2


def test_a_power_of_two_above_an_inexact_number_is_either_of_two_near_one():
    root = apply("round_f8_e8m0", apply("exp", Y))
    y = torch.tensor([0.0, 0.2, 1.0, math.nan])
    found, got = ball(root, y=y), in_f32(root, y=y)
    assert (found.r > 0).tolist()[:3] == [True, False, False]
    assert inside(root, got, found) == 0.75
    assert float(found.v[0] - found.r[0]) <= 1 < 2 <= float(found.v[0] + found.r[0])
    quotient = ball(1.0 / root, y=y)
    assert bool(quotient.r[:3].isfinite().all())


@pytest.mark.parametrize("op", UNARY_FUNCTIONS)
def test_an_error_of_the_argument_passes_through_a_function(op):
    """The argument is exp(y) as f32 has it; the radius covers the function at both ends of its interval."""
    y = torch.linspace(-9, 4.4 if op in ("sinh", "cosh") else 9, 20001)
    root = apply(op, apply("exp", Y) - 0.75)
    found = ball(root, y=y)
    inner = ball(apply("exp", Y) - 0.75, y=y)
    for sign in (-1, 1):
        moved = Evaluation(Values({("input", "x"): inner.v + sign * inner.r}), torch.float64, everywhere=True).in_real(
            apply(op, X)
        )
        inside(root, moved, found)
    assert inside(root, in_f32(root, y=y), found) > (0.04 if op == "ndtri" else 0.2)  # few are inside (0, 1)


@pytest.mark.parametrize("op", ["pow", "atan2", "hypot", "rem", "mod", "div", "copysign"])
def test_errors_of_two_arguments_pass_through(op):
    x, y = torch.randn(2, 4000, generator=torch.Generator().manual_seed(0)) * 3
    root = apply(op, apply("sin", X), apply("exp", Y) - 1.0)
    assert inside(root, in_f32(root, x=x, y=y), ball(root, x=x, y=y)) > 0.4


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_middle_is_what_real_arithmetic_gives(name):
    root = activation(name)
    told = text.text_of([root])
    numbers = [-30.0, -8.5, -1.0, -1e-4, 0.3, 2.0, 19.0, 25.0, 80.0]
    found = ball(root, x=torch.tensor(numbers))
    with mpmath.workdps(40):
        for i, number in enumerate(numbers):
            element = naive_program.Element(told.lets, {("input", "x"): np.float32(number)})
            want = float(element.real(told.values[0]))
            assert abs(float(found.v[i]) - want) <= 1e-3 * float(found.r[i]) + 1e-15 * abs(want)


def test_what_is_exact_has_no_radius_and_the_bits_of_a_machine():
    root = apply("maximum", X * Y + 0.1, apply("round_bf16", X))
    x, y = torch.randn(2, 1000)
    found = ball(root, x=x, y=y)
    assert not bool(found.r.any())
    assert torch.equal(found.v, in_f32(root, x=x, y=y).double())


def test_a_comparison_is_undecided_where_its_arguments_meet_and_nowhere_else():
    y = torch.tensor([math.nextafter(1.0, 2), 1.0, 0.5, math.nan])
    x = torch.tensor([0.0, 0.0, 0.0, 0.0])
    found = ball(apply("exp", X) > Y, x=x, y=y)
    assert found.r.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert found.v[2:].tolist() == [1.0, 0.0]
    chosen = ball(apply("select", apply("exp", X) > Y, constant(3.0, "f32"), constant(5.0, "f32")), x=x, y=y)
    assert chosen.r.tolist() == [2.0, 2.0, 0.0, 0.0]
    both = ball((apply("exp", X) > Y) & (Y > 0.7), x=x, y=y)
    assert both.r.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert ball(apply("i32", apply("exp", X)), x=x).r.tolist() == [1.0] * 4
    assert ball(apply("floor", apply("exp", X) + 0.5), x=x).r.tolist() == [0.0] * 4


def test_nothing_is_said_of_an_overflow_a_pole_and_a_divisor_that_may_be_zero():
    x = torch.tensor([100.0, 1.0, 0.0])
    assert ball(apply("exp", X), x=x).r.isinf().tolist() == [True, False, False]
    assert ball(1.0 / (apply("exp", X) - 1.0), x=x).r.isinf().tolist() == [True, False, True]
    assert ball(apply("log", apply("exp", X) - 1.0), x=x).r.isinf().tolist() == [True, False, True]
    special = torch.tensor([math.inf, -math.inf, math.nan])
    assert bool((ball(apply("exp", X), x=special).r <= 2.0**-149).all())
    assert ball(apply("exp", X), x=special).v.tolist()[:2] == [math.inf, 0.0]


def test_nothing_is_said_where_the_radius_reaches_beyond_the_largest_number():
    """The largest f32 is exp(88.722839...): the first value is below it by less than its error, the second by more."""
    rough = Machine({"f32": 0.0}, {("exp", "f32"): 2.0**-16})
    x = torch.tensor([88.72283, 88.72, 88.72285])
    found = Bounds(Values({("input", "x"): x}), rough)(apply("exp", X))
    most = torch.finfo(torch.float32).max
    assert float(found.v[0]) < most < float(found.v[0]) * (1 + 2.0**-16)
    assert found.r.isinf().tolist() == [True, False, True]


def test_a_truth_is_undecided_where_zero_is_at_the_very_end_of_an_interval():
    """On a machine whose relative error is 1, a radius is as large as its value."""
    whole = Machine({"f32": 0.0}, {("exp", "f32"): 1.0}, least=0.0)
    bounds = Bounds(Values({("input", "x"): torch.tensor([0.0, 1.0])}), whole)
    found = bounds(apply("bool", apply("exp", X)))
    exp = bounds(apply("exp", X))
    assert torch.equal(exp.v.abs(), exp.r)
    assert found.r.tolist() == [1.0, 1.0]


def test_a_store_adds_one_rounding_and_saturates_or_overflows():
    ball_of = ball(apply("exp", X), x=torch.tensor([0.5, 12.0, 30.0]))
    half = stored(ball_of, "f16")
    assert half.r[0] >= 2.0**-11 * half.v[0]
    assert half.r[0] < 2.0**-10 * half.v[0]
    assert half.r[1:].isinf().all()
    eight = stored(ball_of, "f8_e4m3")
    assert eight.v.tolist()[1:] == [448.0, 448.0]
    assert bool(eight.r.isfinite().all())
    exact = stored(ball(X * 1.0, x=torch.tensor([1.0009765625, 300.0])), "bf16")
    assert exact.v.tolist() == [1.0, 300.0]
    assert not bool(exact.r.any())


def test_lgamma_of_f64_has_no_bound_where_cuda_documents_none():
    x = torch.tensor([-25.5, -22.5, -11.5, -3.5, -1.5, 3.5])
    assert ball(apply("lgamma", X), x=x).r.isfinite().tolist() == [True, True, True, False, True, True]
    wide = ball(apply("lgamma", value("x", "f64")), x=x.double())
    assert wide.r.isfinite().tolist() == [True, False, False, False, True, True]


def test_a_wave_has_an_absolute_error_beside_the_relative_one():
    machine = machine_of({"u": 2.0**-24, "ulp.bessel_j0": 9.0, "abs.bessel_j0": 2.2e-6})
    found = Bounds(Values({("input", "x"): torch.tensor([2.4048256, 100.0])}), machine)(apply("bessel_j0", X))
    assert bool(((found.r > 2.2e-6) & (found.r < 2.5e-6)).all())


SMOOTH = [op for op in UNARY_FUNCTIONS if op not in ("lgamma",)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_programs_are_within_their_bounds(data):
    nodes = [X, Y, constant(0.5, "f32"), constant(-3.0, "f32")]
    ops = [*SMOOTH, "add", "sub", "mul", "div", "minimum", "maximum", "select", "sqrt", "floor", "sign", "round_bf16", "mod"]
    for _ in range(data.draw(st.integers(2, 10))):
        op = data.draw(st.sampled_from(ops))
        pick = lambda: data.draw(st.sampled_from(nodes))  # noqa: E731
        if op == "select":
            nodes.append(
                apply(op, pick() > pick() if data.draw(st.booleans()) else apply("lt", nodes[0], nodes[-1]), pick(), pick())
            )
        else:
            nodes.append(
                apply(op, *(pick() for _ in next(iter(OPERATIONS[op].signatures))))
                if op not in ("mod",)
                else apply(op, pick(), pick())
            )
    x, y = torch.randn(2, 300, generator=torch.Generator().manual_seed(1)) * 2
    inside(nodes[-1], in_f32(nodes[-1], x=x, y=y).expand(300), ball(nodes[-1], x=x, y=y))


def test_a_machine_without_errors_is_the_real_value():
    none = Machine({"f32": 0.0}, {("exp", "f32"): 0.0}, least=0.0)
    found = Bounds(Values({("input", "x"): torch.tensor([0.5])}), none)(apply("exp", X))
    assert float(found.r) < 1e-40
    assert float(found.v) == math.exp(0.5)


def test_a_ball_of_powers_of_two_goes_around_those_of_both_ends():
    """2.5 to 3.5 is 4; 3.75 to 4.25 is 4 or 8. A number beyond the largest becomes the largest, and NaN stays NaN."""
    v, r = torch.tensor([3.0, 4.0, math.inf, math.nan, 1.0]), torch.tensor([0.5, 0.25, 1.0, 1.0, math.inf])
    found = stored(Ball(v.double(), r.double()), "f8_e8m0")
    assert found.v[:3].tolist() == [4.0, 6.0, 2.0**127]
    assert found.v[3].isnan()
    assert found.r.tolist() == [0.0, 2.0, 0.0, 0.0, math.inf]
