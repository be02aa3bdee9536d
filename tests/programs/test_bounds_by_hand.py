"""Softmax and RMS norm against formulas and bounds by hand: the reference agrees, and each kernel's bound is less than twice as
wide.
"""

import random

import numpy as np
import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.plans._folds import values as _fold_values
from opfacade.plans.norm import NormDescriptor
from opfacade.plans.softmax import SoftmaxDescriptor
from opfacade.programs.bound import machine_of
from opfacade.testing import inputs
from opfacade.testing.bounds import constants
from opfacade.testing.families._folds import _steps
from tests.support import by_hand

SM_90A = Target.parse("sm_90a")


def kernel(problem, args, node):
    """The bound that the program derives for its first output, from the constants of the kernel, the machine, and the roundings
    of a sum.
    """
    counts = constants(Plan.select(problem, Preference(backend="cuda"), SM_90A).sku)
    machine, program = machine_of(counts), problem.folded()
    ball = _fold_values.bounds(program, problem.fold_args(args), machine, _steps(counts))(program.resolved[1][node])
    return ball, machine, _steps(counts)


def agree(ball, found, want, bound, own):
    """The expectation is that of the formula, the reference rounds it, and the program's bound is at most twice that."""
    hidden = want.isinf()
    assert (ball.v == want)[hidden].all()
    assert (found == want)[hidden].all()
    size = want.abs() + 1e-30
    assert ((ball.v - want).abs() <= own + 1e-12 * size)[~hidden].all()
    assert ((found.double() - want).abs() <= own + 2.0**-23 * size)[~hidden].all()
    there = (want.abs() > 2.0**-100) & ~hidden
    assert (ball.r[there] <= 2 * bound[there]).all(), float((ball.r / bound)[there].max())


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_softmax(seed, log):
    rows, width = random.Random(seed).randint(1, 9), random.Random(seed + 9).randint(2, 3000)
    problem = SoftmaxDescriptor(shape=(rows, width), dtype="f32", log=log)
    args = inputs.make_args(problem, seed)
    ball, machine, steps = kernel(problem, args, 0)
    want, bound, own = by_hand.softmax(args.x, log, steps(width), machine.relative("exp", "f32"))
    Plan.select(problem, target=Target.cpu()).run(args)
    agree(ball, args.out, want, bound, own)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("level", [1e6, -1e6, 2.0**24, -1e30])
def test_softmax_of_rows_far_from_zero(level, log):
    """The bound depends on the differences: it is no wider for large scores, so a kernel may not round max + log(sum)."""
    problem = SoftmaxDescriptor(shape=(5, 300), dtype="f32", log=log)
    args = inputs.make_args(problem, 2)
    args.x.mul_(3.0).add_(level)
    ball, machine, steps = kernel(problem, args, 0)
    want, bound, own = by_hand.softmax(args.x, log, steps(300), machine.relative("exp", "f32"))
    Plan.select(problem, target=Target.cpu()).run(args)
    agree(ball, args.out, want, bound, own)
    if abs(level) < 1e7:
        assert (bound < 1e-4 * want.abs().clamp(min=1)).all()  # a relative difference of 1/32 is outside


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("temperature", [0.7, 3.0, 1.0])
def test_softmax_of_scores_behind_a_temperature_and_a_mask(temperature, masked, log):
    problem = SoftmaxDescriptor(shape=(6, 700), dtype="f32", log=log, temperature=temperature, mask=masked)
    args = inputs.make_args(problem, 3)
    args.x.mul_(5.0)
    ball, machine, steps = kernel(problem, args, 0)
    x = torch.where(args.mask, args.x, -torch.inf) if masked else args.x
    by = {} if temperature == 1.0 else {"temperature": float(np.float32(temperature)), "q": machine.relative("div", "f32")}
    want, bound, own = by_hand.softmax(x, log, steps(700), machine.relative("exp", "f32"), **by)
    Plan.select(problem, target=Target.cpu()).run(args)
    agree(ball, args.out, want, bound, own)


@pytest.mark.parametrize("seed", range(4))
def test_rms(seed):
    rows, width = random.Random(seed).randint(1, 9), random.Random(seed + 9).randint(2, 3000)
    problem = NormDescriptor(kind="rms", total_num_rows=rows, hidden=width, dtype="f32", eps=2.0**-20)
    args = inputs.make_args(problem, seed)
    ball, machine, steps = kernel(problem, args, 0)
    want, bound, own = by_hand.rms(args.x, args.weight, problem.eps, steps(width), machine.relative("rsqrt", "f32"))
    Plan.select(problem, target=Target.cpu()).run(args)
    agree(ball, args.out, want, bound, own)
