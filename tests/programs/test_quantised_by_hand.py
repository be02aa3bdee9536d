"""Quantised norms and gated activations, before they are stored: formula, and a bound that no kernel's bound
exceeds twofold.
"""

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.plans._programs.values import numbers_of
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.plans.norm import NormDescriptor
from opfacade.plans.quantize import Quant
from opfacade.programs.bound import Bounds, machine_of
from opfacade.programs.evaluate import Values
from opfacade.testing import inputs
from opfacade.testing.bounds import constants
from tests.programs.test_bounds_by_hand import SM_90A, kernel
from tests.programs.test_norms_by_hand import ROOM, told
from tests.support import by_hand_quant
from tests.support.by_hand_gates import PLAIN

U = 2.0**-24
LARGEST = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0, "i8": 127.0}
QUANTS = {
    "token": Quant(dtype="f8_e4m3", scale="token"),
    "group": Quant(dtype="f8_e5m2", scale="group", group=32),
    "static": Quant(dtype="f8_e4m3", scale="static"),
    "i8 token": Quant(dtype="i8", scale="token"),
    "i8 group": Quant(dtype="i8", scale="group", group=32),
    "i8 static": Quant(dtype="i8", scale="static"),
}


def quantised(value, bound, quant, scale, by):
    """(element, its bound, scale, its bound): a scale is the quotient of the largest magnitude and the largest number.

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
    """The bound of the program against the bound by hand, and its values against the formula."""
    (ball, machine, _), quant = kernel(problem, args, 0), problem.quant
    want = quantised(value, bound, quant, args.scale, machine.relative("div", "f32"))
    balls = [ball] if quant.scale == "static" else [ball, kernel(problem, args, 1)[0]]
    within(balls, want, quant.dtype == "i8")


def within(balls, want, integers):
    """integers: elements are integers from -128 to 127, to which some number within the bound by hand rounds."""
    for own, (right, limit) in zip(balls, (want[:2], want[2:]), strict=False):
        v, r = (one.reshape(right.shape) for one in torch.broadcast_tensors(*own))
        if integers and own is balls[0]:
            room = (2 * ROOM * limit + 8 * U * right.abs()).nan_to_num()  # NaN where the right value is 0
            least, most = ((right + side).round().clamp(-128, 127) for side in (-room, room))
            assert (least == most).double().mean() > 0.99
            assert ((least <= v) & (v <= most) & (r <= most - least)).all()
            continue
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
    stored(problem, args, value)


def stored(problem, args, value):
    """The reference stores the nearest number of the dtype: f64 has the same one unless the quotient is a tie."""
    quant = problem.quant
    Plan.select(problem, target=Target.cpu()).run(args)
    quotient = quantised(value, 0 * value, quant, args.scale, 0.0)[0].reshape(value.shape)
    near = [(quotient * (1 + side * 2.0**-20)).float() for side in (-1, 1)]
    low, high = (by_hand_quant.stored(one, by_hand_quant.DTYPES[quant.dtype]) for one in near)
    sure = low.float() == high.float()
    assert sure.double().mean() > 0.99
    assert torch.equal(args.out.float()[sure], low.float()[sure])


@pytest.mark.parametrize("activation", ["silu", "gelu", "relu2"])
@pytest.mark.parametrize("quant", QUANTS)
def test_a_quantised_activation_has_the_scale_and_elements_of_its_formula(quant, activation):
    problem = GatedActivationDescriptor(total_num_rows=7, width=96, dtype="f32", activation=activation, quant=QUANTS[quant])
    args = inputs.make_args(problem, 4)
    balls, machine = balls_of(problem, args)
    gate, up = (problem.views(args.x)[part].double() for part in ("gate", "up"))
    value, error = PLAIN[activation](gate, {op: machine.relative(op, "f32") for op in ("exp", "div", "erfc")})
    value, bound = value * up, (value * up).abs() * (error + U)
    want = quantised(value, bound, problem.quant, args.scale, machine.relative("div", "f32"))
    within(balls, want, problem.quant.dtype == "i8")
    stored(problem, args, value)


def balls_of(problem, args):
    """(those of the elements and of computed scales, the machine): with a scale that is an operand, the op is a map."""
    if problem.makes_scales:
        found = [kernel(problem, args, node) for node in range(2)]
        return [ball for ball, _, _ in found], found[0][1]
    machine = machine_of(constants(Plan.select(problem, Preference(backend="cuda"), SM_90A).sku))
    leaves = {("input", part): tensor for part, tensor in problem.views(args.x).items()}
    leaves |= {("input", "scale"): args.scale} | numbers_of(problem.scalars, args.x.device)
    return [Bounds(Values(leaves, args.x.device), machine)(problem.program()["out"])], machine
