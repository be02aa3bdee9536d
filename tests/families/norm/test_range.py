"""Rows up to the magnitude that the page of norms states: correct within the bound on the reference and in the emulator."""

import math

import pytest
import torch

from opfacade import Plan, Target
from opfacade.core.dtypes import torch_dtype
from opfacade.plans.norm import NormArgs, NormDescriptor
from opfacade.testing import numerics
from opfacade.testing.subject import Subject
from tests import emulator

# The largest element of a row, multiplied by the root of the row length.
LIMIT = {"rms": 2.0**63, "layer": 2.0**62}
PLACES = [pytest.param("emulator", marks=emulator.needed), "reference"]


def subject_of(place, problem):
    return emulator.subject(problem) if place == "emulator" else OnCpu(problem)


class OnCpu(Subject):
    def __init__(self, problem):
        super().__init__(problem, "reference", "cpu")


def normed(place, kind, width, level, dtype="f32"):
    """Half of a row is at +level and half at -level: the mean is 0, the deviation and the root mean square are the level."""
    problem = NormDescriptor(kind=kind, total_num_rows=2, hidden=width, dtype=dtype, weight="none")
    x = torch.full((2, width), level).to(torch_dtype(dtype))
    x[:, 1::2] *= -1
    subject, args = subject_of(place, problem), NormArgs(x=x, out=torch.full_like(x, math.nan))
    before = numerics.snapshot(problem, args)
    subject.run(args)
    return args, numerics.check(problem, args, subject.plan.sku, before=before)


def signs(width):
    return [[1.0, -1.0] * (width // 2)] * 2


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("kind", "width", "dtype"), [("rms", 4, "f32"), ("rms", 1024, "bf16"), ("layer", 4, "bf16"), ("layer", 1024, "f32")]
)
def test_a_row_at_the_limit_is_within_the_bound(place, kind, width, dtype):
    args, report = normed(place, kind, width, LIMIT[kind] / math.sqrt(width), dtype)
    assert report.worst <= 1
    assert (args.out.double() - torch.tensor(signs(width), dtype=torch.float64)).abs().max() < 1e-5


@pytest.mark.parametrize("kind", LIMIT)
def test_the_bound_is_infinite_if_the_sum_of_squares_may_overflow(kind):
    """Each of the four squares of 1.2 x 2^63 is finite, but their sum overflows f32, so the bound allows any result."""
    plan = Plan.select(
        NormDescriptor(kind=kind, total_num_rows=2, hidden=4, dtype="f32", weight="none"), target=Target.parse("sm_90a")
    )
    for level, known in ((LIMIT[kind] / 2, True), (1.2 * 2.0**63, False)):
        x = torch.tensor([[1.0, -1.0, 1.0, -1.0]] * 2) * level
        wrong = numerics.check(plan.descriptor, NormArgs(x=x, out=torch.full_like(x, 9.0)), plan.sku, before={})
        assert (wrong.worst > 1) == known


@emulator.needed
@pytest.mark.parametrize("kind", LIMIT)
def test_rows_beyond_the_limit_behave_as_the_page_states(kind):
    """The kernel's sum overflows, so its result is 0; the reference is right."""
    assert not normed("emulator", kind, 4, 1e19)[0].out.any()
    assert normed("reference", kind, 4, 1e19)[0].out.tolist() == signs(4)
