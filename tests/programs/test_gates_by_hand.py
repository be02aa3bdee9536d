"""Gated activations against formulas and bounds by hand: the reference agrees, and each kernel's bound is less than twice as
wide.
"""

from typing import get_args

import pytest

from opfacade import Plan, Preference, Target
from opfacade.plans import activation
from opfacade.plans._programs.values import numbers_of
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.programs.bound import Bounds, machine_of
from opfacade.programs.evaluate import Values
from opfacade.testing import inputs
from opfacade.testing.bounds import constants
from tests.support.by_hand_gates import gated

ROOM = 1 + 2.0**-10  # for terms of second order
FORMS = [(name, None, None) for name in get_args(activation.Activation)]
FORMS += [("silu", 3.0, None), ("silu", None, 1.702), ("swiglu_oai", 2.0, 1.25), ("gelu", 1.5, None), ("relu2", 2.5, None)]


@pytest.mark.parametrize(("name", "limit", "alpha"), FORMS)
def test_a_gated_activation_is_its_formula(name, limit, alpha):
    problem = GatedActivationDescriptor(total_num_rows=9, width=300, dtype="f32", activation=name, limit=limit, alpha=alpha)
    args = inputs.make_args(problem, 4)
    args.x.mul_(3.0)  # into the tails
    parts = problem.views(args.x)
    counts = constants(Plan.select(problem, Preference(backend="cuda"), Target.parse("sm_90a")).sku)
    machine = machine_of(counts)
    leaves = {("input", part): tensor for part, tensor in parts.items()} | numbers_of(problem.scalars, args.x.device)
    ball = Bounds(Values(leaves, args.x.device), machine)(problem.program()["out"])
    errors = {op: machine.relative(op, "f32") for op in ("exp", "div", "erfc")}
    limit = 7.0 if name == "swiglu_oai" and limit is None else limit
    gate, up = parts["gate"].double(), parts["up"].double()
    want, bound = gated(name, gate, up, limit, alpha, errors)
    own = gated(name, gate, up, limit, alpha, dict.fromkeys(errors, 0.0))[1]  # steps that are exact round to f32 everywhere
    Plan.select(problem, target=Target.cpu()).run(args)
    there = want.abs() > 2.0**-100
    assert ((args.out.double() - want).abs() <= own * ROOM + 2.0**-23 * want.abs() + 1e-37).all()
    assert ((ball.v - want).abs() <= own * ROOM + 1e-12 * want.abs() + 1e-37).all()
    assert (ball.r[there] <= 2 * ROOM * bound[there] + 2.0**-120).all(), float((ball.r / bound)[there].max())
