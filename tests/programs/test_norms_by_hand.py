"""Norms against formulas and bounds by hand: the reference agrees, and each kernel's bound is less than twice as wide."""

import pytest
import torch

from opfacade import Plan, Target
from opfacade.plans import norm
from opfacade.plans.norm import NormDescriptor
from opfacade.testing import inputs
from tests.programs.test_bounds_by_hand import kernel
from tests.support import by_hand_gates
from tests.support.by_hand_norms import REAL, Rounding, U, certain, normed, one_plus, summed, weighted

CPU = Target.cpu()
ROOM = 1 + 2.0**-10  # for terms of second order


def told(problem, args):
    """(value, bound of a kernel, bound of f64, ball) of the last output, by hand and by the program of the kernel."""
    ball, machine, steps = kernel(problem, args, int(problem.residual))
    width = problem.hidden // problem.groups
    by = Rounding(2.0**-24, machine.relative("div", "f32"), machine.relative("rsqrt", "f32"), steps(width))
    residual = args.residual.clone() if problem.residual else None
    s, _, error = (
        summed(args.x, residual, problem.residual_sum) if problem.residual else (args.x.double(), None, 0 * args.x.double())
    )
    apart = (problem.total_num_rows, problem.groups, width)
    weight = None if args.weight is None else args.weight.double()
    weight = one_plus(args.weight) if problem.weight == "one_plus" else weight
    bias = None if args.bias is None else args.bias.double()
    found = []
    for machine_of in (by, REAL):
        value, bound = normed(s.view(apart), error.view(apart), problem.kind, problem.eps, machine_of)
        value, bound = weighted(value.reshape(s.shape), bound.reshape(s.shape), weight, bias, machine_of)
        found.append(gated(value, bound, problem.gate, args.gate, machine_of, machine))
    return found[0][0], found[0][1] * ROOM, found[1][1] * ROOM, ball


def gated(value, bound, kind, gate, by, machine):
    """Times silu or sigmoid of the gate: one more product. A function of one f32 element is f32 on every machine."""
    if kind == "none":
        return value, bound
    errors = {op: machine.relative(op, "f32") if by.u else U for op in ("exp", "div")}
    g = gate.double()
    factor, of_factor = (
        by_hand_gates.silu(g, errors) if kind == "silu" else by_hand_gates.share(g, 0.0, errors["exp"], errors["div"])
    )
    return value * factor, bound * factor.abs() + (value * factor).abs() * (of_factor + by.u)


def hold(problem, seed, shift=0.0):
    args = inputs.make_args(problem, seed)
    args.x.add_(shift)
    want, bound, own, ball = told(problem, args)
    Plan.select(problem, target=CPU).run(args)
    v, r = (one.reshape(want.shape) for one in torch.broadcast_tensors(*ball))
    size = want.abs() + 1e-30
    assert ((v - want).abs() <= own + 1e-12 * size).all()
    assert ((args.out.double() - want).abs() <= own + 2.0**-23 * size).all()
    there = want.abs() > 2.0**-100
    assert (r[there] <= 2 * bound[there]).all(), float((r / bound)[there].max())


PLAIN = {"total_num_rows": 5, "hidden": 514, "dtype": "f32", "eps": 2.0**-20}
FORMS = {
    "layer": {"kind": "layer"},
    "layer_bias": {"kind": "layer", "bias": True},
    "rms_sum": {"kind": "rms", "residual": True},
    "layer_sum": {"kind": "layer", "residual": True},
    "rms_groups": {"kind": "rms", "groups": 2},
    "layer_groups": {"kind": "layer", "groups": 2, "bias": True},
    "one_plus": {"kind": "rms", "weight": "one_plus"},
    "no_weight": {"kind": "layer", "weight": "none"},
    "silu": {"kind": "rms", "gate": "silu", "groups": 2},
    "sigmoid": {"kind": "layer", "gate": "sigmoid", "weight": "none"},
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("form", FORMS)
def test_a_norm_is_its_formula(form, seed):
    hold(NormDescriptor(**PLAIN, **FORMS[form]), seed)


def test_a_layer_norm_of_rows_far_from_zero_is_its_formula():
    """The mean is 100 times the deviation: a kernel that subtracts mean squares loses the variance."""
    hold(NormDescriptor(kind="layer", **PLAIN), 1, shift=100.0)


@pytest.mark.parametrize("how", ["f32", "rounded"])
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_the_norm_is_of_the_sum_that_is_named(kind, how):
    """257 in bf16 is 256: the norm of one sum differs from that of the other in every element."""
    problem = NormDescriptor(
        kind=kind, total_num_rows=3, hidden=64, dtype="bf16", residual=True, residual_sum=how, weight="none"
    )
    args = inputs.make_args(problem, 3)
    args.x.copy_(torch.tensor([1.0, 3.0]).repeat(32))
    args.residual.copy_(torch.tensor([256.0, 512.0, 128.0, 264.0]).repeat(16))
    s, kept, error = summed(args.x, args.residual.clone(), how)
    other = summed(args.x, args.residual.clone(), {"f32": "rounded", "rounded": "f32"}[how])[0]
    want, own = normed(s, error, kind, problem.eps, REAL)
    wrong = normed(other, error, kind, problem.eps, REAL)[0]
    Plan.select(problem, target=CPU).run(args)
    expected, sure = certain(want, own + 1e-12, torch.bfloat16)
    assert torch.equal(args.residual, kept)
    assert torch.equal(args.out[sure], expected[sure])
    assert (expected[sure] != wrong.to(torch.bfloat16)[sure]).any()


def llama(x, weight, residual, eps):
    """LlamaRMSNorm of transformers after a sum in the dtype; vLLM's rms_norm and fused_add_rms_norm round the same way."""
    total = x + residual
    value, own = normed(total.double(), 0 * total.double(), "rms", eps, REAL)
    rounded, sure = certain(value, own + 1e-12, x.dtype)
    return (weight.double() * rounded.double()), 0 * value, sure, total


def gemma(x, weight, residual, eps):
    """GemmaRMSNorm: normed in f32, times 1 + weight, rounded once; after a sum in the dtype."""
    total = x + residual
    value, own = normed(total.double(), 0 * total.double(), "rms", eps, REAL)
    value, own = weighted(value, own, one_plus(weight), None, REAL)
    return value, own, torch.ones_like(total, dtype=torch.bool), total


def flashinfer(x, weight, residual, eps):
    """FlashInfer's fused_add_rmsnorm: the norm is of the sum in f32, which is rounded into residual; rounded once."""
    total = x.double() + residual.double()
    value, own = normed(total, 2.0**-24 * total.abs(), "rms", eps, REAL)
    value, own = weighted(value, own, weight.double(), None, REAL)
    return value, own, torch.ones_like(x, dtype=torch.bool), (x.float() + residual.float()).to(x.dtype)


PRESETS = {"vllm": llama, "huggingface": llama, "gemma": gemma, "flashinfer": flashinfer}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_rounds_where_its_library_does(name):
    """Each preset differs from the others in some element, so the right answer identifies the preset."""
    problem = getattr(norm, name)(total_num_rows=9, hidden=512, dtype="bf16", residual=True)
    args = inputs.make_args(problem, 5)
    x, weight, residual = args.x.clone(), args.weight.clone(), args.residual.clone()
    Plan.select(problem, target=CPU).run(args)
    answers = {}
    for other, formula in PRESETS.items():
        want, own, known, total = formula(x, weight, residual, problem.eps)
        expected, sure = certain(want, own + 1e-12 * want.abs(), torch.bfloat16)
        answers[other] = (expected, sure & known, total)
    expected, sure, total = answers[name]
    assert sure.double().mean() > 0.9
    assert torch.equal(args.out[sure], expected[sure])
    assert torch.equal(args.residual, total)
    for other, (wrong, also, _) in answers.items():
        if PRESETS[other] is not PRESETS[name]:
            assert (wrong != args.out)[sure & also].any(), other


def test_every_preset_of_norms_has_its_formula():
    assert set(PRESETS) == {one for one in norm.__all__ if one.islower()}
