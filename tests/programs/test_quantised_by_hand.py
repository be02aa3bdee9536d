"""Norms and gated activations that are quantised, before they are stored: formula, and a bound that no kernel's doubles."""

import pytest
import torch

from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.plans.norm import NormDescriptor
from opfacade.plans.quantize import Quant
from opfacade.testing import inputs
from tests.programs.test_bounds_by_hand import kernel
from tests.programs.test_norms_by_hand import ROOM, told
from tests.support.by_hand_gates import PLAIN

U = 2.0**-24
LARGEST = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0}
QUANTS = {
    "token": Quant(dtype="f8_e4m3", scale="token"),
    "group": Quant(dtype="f8_e5m2", scale="group", group=32),
    "static": Quant(dtype="f8_e4m3", scale="static"),
}


def quantised(value, bound, quant, scale, by):
    """(element, its bound, scale, its bound): a scale is the largest magnitude over the largest number, a quotient.

    A largest magnitude errs by no more than the worst of its elements. A quotient has the errors of both, and its own.
    """
    groups = value.shape[-1] // (quant.group if quant.scale == "group" else value.shape[-1])
    value, bound = (one.unflatten(-1, (groups, -1)) for one in (value, bound))
    if quant.scale == "static":
        factor, of_factor = scale.double().view(1, 1, 1), torch.zeros(1, 1, 1, dtype=torch.float64)
    else:
        most = value.abs().amax(-1, keepdim=True)
        factor = most / LARGEST[quant.dtype]
        of_factor = (bound.amax(-1, keepdim=True) / most + by) * factor
    found = value / factor
    return found, found.abs() * (bound / value.abs() + of_factor / factor + by), factor, of_factor


def hold(problem, args, value, bound):
    """The bound of the program beside that by hand, and its values beside the formula."""
    (ball, machine, _), quant = kernel(problem, args, 0), problem.quant
    want = quantised(value, bound, quant, args.scale, machine.relative("div", "f32"))
    balls = [ball] if quant.scale == "static" else [ball, kernel(problem, args, 1)[0]]
    for own, (right, limit) in zip(balls, (want[:2], want[2:]), strict=False):
        v, r = (one.reshape(right.shape) for one in torch.broadcast_tensors(*own))
        there = right.abs() > 2.0**-100
        assert ((v - right).abs() <= 8 * U * right.abs())[there].all()
        assert (r <= 2 * ROOM * limit)[there].all(), float((r / limit)[there].max())


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("quant", QUANTS)
def test_a_quantised_norm_has_the_scale_and_elements_of_its_formula(quant, kind):
    problem = NormDescriptor(kind=kind, total_num_rows=7, hidden=256, dtype="f32", quant=QUANTS[quant])
    args = inputs.make_args(problem, 4)
    value, bound, _, _ = told(problem, args)
    hold(problem, args, value, bound)


@pytest.mark.parametrize("activation", ["silu", "gelu", "relu2"])
@pytest.mark.parametrize("quant", ["token", "group"])
def test_a_quantised_activation_has_the_scale_and_elements_of_its_formula(quant, activation):
    problem = GatedActivationDescriptor(total_num_rows=7, width=96, dtype="f32", activation=activation, quant=QUANTS[quant])
    args = inputs.make_args(problem, 4)
    machine = kernel(problem, args, 0)[1]
    gate, up = (problem.views(args.x)[part].double() for part in ("gate", "up"))
    value, error = PLAIN[activation](gate, {op: machine.relative(op, "f32") for op in ("exp", "div", "erfc")})
    hold(problem, args, value * up, (value * up).abs() * (error + U))
