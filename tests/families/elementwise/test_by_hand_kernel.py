"""Map kernels in the emulator on values that a reader can compute by hand: positions far outside an axis, and conversions at
the limits of integers."""

import math

import pytest
import torch

from opfacade.core.dtypes import torch_dtype
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs.expression import read, value
from opfacade.programs.fields import Input, Output
from opfacade.programs.types import widened
from tests import emulator
from tests.families.elementwise.forms import cast

# Requested positions on an axis of length 5; INSIDE lists the position that each boundary mode reads.
PLACES = (-2147483653, -13, -9, -8, -5, -4, -1, 0, 4, 5, 8, 9, 12, 13, 16, 41, 2**40 + 3)
INSIDE = {
    "clamp": (0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4, 4),
    "wrap": (2, 2, 1, 2, 0, 1, 4, 0, 4, 0, 3, 4, 2, 3, 1, 1, 4),
    "reflect": (3, 3, 1, 0, 3, 4, 1, 0, 4, 3, 0, 1, 4, 3, 0, 1, 3),
    -1.0: (-1, -1, -1, -1, -1, -1, -1, 0, 4, -1, -1, -1, -1, -1, -1, -1, -1),
}


def test_the_table_of_positions_agrees_with_a_walk_along_the_axis():
    """A walk back and forth along the axis, and a walk around it, give the table for positions near the axis."""
    mirrored, around = [0, 1, 2, 3, 4, 3, 2, 1] * 12, [0, 1, 2, 3, 4] * 20
    for at, place in enumerate(PLACES):
        if abs(place) < 48:
            assert (INSIDE["reflect"][at], INSIDE["wrap"][at]) == (mirrored[48 + place], around[50 + place]), place


@emulator.needed
@pytest.mark.parametrize("outside", INSIDE)
@pytest.mark.parametrize("dtype", ["f32", "i8"])
def test_a_position_outside_the_axis_is_mapped_inside(outside, dtype):
    given = widened(dtype)
    fill = outside if isinstance(outside, str) or dtype == "f32" else int(outside)
    made = Output(name="z", dtype=dtype, value=read("x", given, (value("at", "i64"),), fill))
    inputs = (Input(name="at", dtype="i64"), Input(name="x", dtype=dtype, shape=(5,)))
    problem = MapDescriptor(shape=(len(PLACES),), inputs=inputs, outputs=(made,))
    x, z = torch.arange(5).to(torch_dtype(dtype)), torch.full((len(PLACES),), 99).to(torch_dtype(dtype))
    args = problem.args(at=torch.tensor(PLACES), x=x, z=z)
    emulator.subject(problem).run(args)
    assert z.tolist() == list(INSIDE[outside])


@emulator.needed
@pytest.mark.parametrize("outside", ["clamp", "wrap", "reflect"])
def test_every_position_reads_the_only_element_of_an_axis_of_length_1(outside):
    made = Output(name="z", dtype="f32", value=read("x", "f32", (value("at", "i64"),), outside))
    inputs = (Input(name="at", dtype="i64"), Input(name="x", dtype="f32", shape=(1,)))
    problem = MapDescriptor(shape=(len(PLACES),), inputs=inputs, outputs=(made,))
    z = torch.full((len(PLACES),), math.nan)
    emulator.subject(problem).run(problem.args(at=torch.tensor(PLACES), x=torch.tensor([3.0]), z=z))
    assert z.tolist() == [3.0] * len(PLACES)


@emulator.needed
@pytest.mark.parametrize("target", ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"])
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_conversion_of_a_float_at_and_past_the_limits_of_integers(source, target):
    """2^bits is one more than the largest integer and exact in every source type; the next smaller float is truncated toward
    zero."""
    signed = target[0] == "i"
    bits = int(target[1:]) - signed
    end = 2.0**bits
    below = torch.nextafter(torch.tensor(end, dtype=torch_dtype(source)), torch.tensor(0.0, dtype=torch_dtype(source))).item()
    least = -(2**bits) if signed else 0
    want = {
        end: 2**bits - 1, 2 * end: 2**bits - 1, math.inf: 2**bits - 1, below: int(below), -end: least, -2 * end: least,
        -math.inf: least, 1.75: 1, -0.5: 0, -1.75: -1 if signed else 0, 0.0: 0,
    }  # fmt: skip
    problem = cast(source, target, (len(want) + 1,))
    x = torch.tensor([*want, math.nan], dtype=torch_dtype(source))
    z = torch.full((len(want) + 1,), 77).to(torch_dtype(target))
    emulator.subject(problem).run(problem.args(x=x, z=z))
    assert z.tolist() == [*want.values(), 0]
