"""Softmax on the fold kernels keeps its error bound."""

import math
from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.core.descriptor import operands_of
from opfacade.plans.softmax import SoftmaxArgs, SoftmaxDescriptor
from opfacade.testing import inputs, numerics
from opfacade.testing.families.elementwise import differs
from tests import emulator
from tests.families.elementwise.forms import laid_out
from tests.families.softmax.test_reference import FORMS


def checked(subject, args):
    before = numerics.snapshot(subject.descriptor, args)
    subject.run(args)
    assert numerics.check(subject.descriptor, args, subject.plan.sku, before=before).worst <= 1


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_each_form_keeps_its_bound_and_its_bits_for_any_strides(name):
    problem = FORMS[name]
    subject, args = emulator.subject(problem), inputs.make_args(problem, 3)
    names = [one for one in operands_of(problem) if one != "num_valid"]
    other = replace(args, **{one: laid_out(getattr(args, one), "transposed") for one in names})
    checked(subject, args)
    checked(subject, other)
    assert not bool(differs(args.out, other.out).any())


@emulator.needed
def test_an_expanded_mask_and_rows_that_the_mask_hides_completely():
    problem = SoftmaxDescriptor(shape=(4, 300), dtype="bf16", mask=True, safe=True)
    args = inputs.make_args(problem, 1)
    mask = (torch.arange(300) % 3 == 0).expand(4, 300)
    checked(emulator.subject(problem), replace(args, mask=mask))
    none = torch.zeros(4, 300, dtype=torch.bool)
    checked(emulator.subject(problem), replace(args, mask=none))
    assert bool((args.out == 0).all())


@emulator.needed
@pytest.mark.parametrize("level", [1e6, -1e6, 2.0**24, 1e30])
@pytest.mark.parametrize(("shape", "axis"), [((2, 7), 1), ((7, 3), 0)])
def test_log_softmax_of_large_scores_subtracts_the_maximum_first(shape, axis, level):
    """Each of seven equal scores has the log probability -log(7) at any level; max + log(7) would lose this to the rounding of
    f32."""
    problem, out = SoftmaxDescriptor(shape=shape, axis=axis, dtype="f32", log=True), torch.full(shape, math.nan)
    emulator.subject(problem).run(SoftmaxArgs(x=torch.full(shape, level), out=out))
    assert (out + math.log(7)).abs().max() < 5e-7


@pytest.mark.gpu
@pytest.mark.parametrize("width", [100, 1000, 4096, 32768, 50257, 131072, 262144])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_wide_rows_keep_the_bound_on_a_gpu(width, dtype):
    problem = SoftmaxDescriptor(shape=(5, width), dtype=dtype)
    args = inputs.make_args(problem, 3, "cuda")
    plan = Plan.select(problem, Preference(backend="cuda"))
    plan.run(args)
    assert numerics.check(problem, args, plan.sku).worst <= 1
