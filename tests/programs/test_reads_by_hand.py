"""Sums of neighbours, padded by numpy: exact sums bit for bit, others against an f64 form whose bound no kernel's bound exceeds
twofold.
"""

import numpy as np
import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.plans._programs.values import values_of
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import bound
from opfacade.programs.expression import apply, coord, read
from opfacade.programs.fields import Input, Output
from opfacade.testing import inputs
from opfacade.testing.bounds import constants

U = 2.0**-24
WEIGHTS = (0.3, 1.7, -2.9)
PADDED = {"clamp": "edge", "wrap": "wrap", "reflect": "reflect"}  # numpy's name for each
SIZES = [(3, 40, 1), (2, 7, 5), (4, 5, 14), (1, 129, 64), (6, 3, 3), (2, 1, 2)]


def problem(rows, width, distance, outside, of=lambda x: x):
    """z[i, j] = 0.3 of(x[i, j - d]) + 1.7 of(x[i, j]) - 2.9 of(x[i, j + d]), added from the left"""
    places = (coord(1) - distance, coord(1), coord(1) + distance)
    terms = [of(read("x", "f32", (coord(0), at), outside)) * weight for weight, at in zip(WEIGHTS, places, strict=True)]
    made = Output(name="z", dtype="f32", value=terms[0] + terms[1] + terms[2])
    return MapDescriptor(shape=(rows, width), inputs=(Input(name="x", dtype="f32", shape=(rows, width)),), outputs=(made,))


def neighbours(x, distance, outside):
    words = {"mode": PADDED[outside]} if outside in PADDED else {"constant_values": outside}
    wide = np.pad(x.numpy(), ((0, 0), (distance, distance)), **words)
    return [wide[:, at : at + x.shape[1]] for at in (0, distance, 2 * distance)]


@pytest.mark.parametrize("outside", [*PADDED, 2.5])
@pytest.mark.parametrize(("rows", "width", "distance"), SIZES)
def test_an_exact_sum_of_neighbours_is_that_of_f32_in_its_order(outside, rows, width, distance):
    given = problem(rows, width, distance, outside)
    args = inputs.make_args(given, 7)
    left, here, right = (x * np.float32(w) for x, w in zip(neighbours(args.in_0, distance, outside), WEIGHTS, strict=True))
    Plan.select(given, target=Target.cpu()).run(args)
    assert given.outputs[0].value.exact
    assert args.out_0.numpy().tobytes() == ((left + here) + right).tobytes()


@pytest.mark.parametrize("outside", [*PADDED, 2.5])
@pytest.mark.parametrize(("rows", "width", "distance"), SIZES)
def test_a_sum_of_functions_of_neighbours_keeps_a_bound_by_hand(outside, rows, width, distance):
    """A function has the error e, its product rounds once, and a term passes at most two sums."""
    given = problem(rows, width, distance, outside, lambda x: apply("exp", x))
    args = inputs.make_args(given, 7)
    machine = bound.machine_of(constants(Plan.select(given, Preference(backend="cuda"), Target.parse("sm_90a")).sku))
    ball = bound.Bounds(values_of(given, args), machine)(given.outputs[0].value)
    weights = np.float32(WEIGHTS).astype(np.float64)
    terms = [np.exp(x.astype(np.float64)) * w for x, w in zip(neighbours(args.in_0, distance, outside), weights, strict=True)]
    want, size = torch.from_numpy(sum(terms)), torch.from_numpy(sum(map(abs, terms)))
    limit = size * (machine.relative("exp", "f32") + 3 * U) * (1 + 8 * U)
    Plan.select(given, target=Target.cpu()).run(args)
    assert ((args.out_0.double() - want).abs() <= limit).all()
    assert ((ball.v - want).abs() <= 1e-12 * size).all()
    assert (ball.r <= 2 * limit).all(), float((ball.r / limit).max())
