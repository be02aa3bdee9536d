"""Every recipe against torch's operator on the samples of torch's own tests.

A result that is not a float has the value of torch. Both results of a float lie in the bound of the program for a machine that
rounds each of its operations and constants: torch's in f64 too, from the same inputs. A program whose constants or order are
wrong is outside of it.
"""

import types
from contextlib import suppress

import pytest
import torch

from opfacade import Preference, Target, recipes
from opfacade.errors import DescriptorError, UnsupportedError
from opfacade.plan import Plan
from opfacade.plans._programs.values import values_of
from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import bound
from opfacade.programs.ball import Ball
from opfacade.programs.operations import FUNCTIONS
from opfacade.programs.types import FLOATS
from opfacade.programs.ulps import documented
from opfacade.testing.families.elementwise import differs
from tests import emulator
from tests.recipes import folds, opinfo

DTYPES = (torch.float32, torch.int64, torch.bool, torch.uint8, torch.bfloat16)
MOST = 6  # samples of an operator and a dtype
MACHINE = bound.machine_of(
    {"u": 2.0**-24, "u64": 2.0**-53}
    | {f"ulp.{name}": documented(name, "f32") for name in FUNCTIONS}
    | {f"ulp64.{name}": 8.0 for name in FUNCTIONS}
)
ROUNDOFF = {"f32": 2.0**-24, "f64": 2.0**-52}
DISTINCT = {recipe.name: recipe for recipe in recipes.RECIPES.values()}
DRAWS = {
    "uniform",
    "rand_like",
    "rand",
    "normal",
    "randn_like",
    "randn",
    "log_normal",
    "exponential_",
    "cauchy",
    "geometric",
    "bernoulli",
    "randint",
    "randint_like",
    "multinomial",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
}  # fmt: skip  test_draws.py has them: no two generators draw the same
PRODUCTS = {
    "mm",
    "bmm",
    "mv",
    "addmm",
    "baddbmm",
    "linear",
    "matmul",
    "__rmatmul__",
    "einsum",
    "scaled_mm",
    "grouped_mm",
}  # test_products.py
NORMS = {"modulated_norm", "gated_add", "gated_add_norm", "head_norm"}  # tested in test_diffusion.py
OWN = (
    DRAWS
    | NORMS
    | PRODUCTS
    | {
        "cbrt",
        "relu2",
        "to",
        "triplet_margin_with_distance_loss",
        "unbind_copy",
    }
)  # torch has no OpInfo sample that the recipe accepts
SM_90A = Target.parse("sm_90a")
RESHAPED = {"group_norm", "native_group_norm", "native_layer_norm"}  # results with other axes than torch's
# Errors of torch's f64: bessel_j0(5.5) is 1.6e-7 beside mpmath's, and sinc of a whole number is not 0.
TORCH = {"ndtr": 2.0**-51, "sinc": 2.0**-52, "bessel_j0": 2e-6, "bessel_j1": 2e-6, "bessel_y0": 2e-6, "bessel_y1": 2e-6}


def accepted(recipe, info, dtype, most=MOST):
    """Calls that the recipe accepts, spread over the samples, with their samples; at most one has no element."""
    known = opinfo.samples(info, dtype, 400)
    step, found, empty = max(1, len(known) // most), [], 0
    for sample in (sample for first in range(step) for sample in known[first::step]):
        call = opinfo.Call.of(info, sample)
        with suppress(DescriptorError):
            descriptor = call.descriptor(recipe)
            empty += 0 in descriptor.shape
            if len(found) < most and (empty < 2 or 0 not in descriptor.shape):
                found.append((sample, call, descriptor))
        if len(found) == most:
            break
    return found


def run(recipe, call, descriptor, backend="reference"):
    args = opinfo.bundle(descriptor, call.tensors(recipe))
    if backend == "reference":
        Plan.select(descriptor, Preference(backend="reference")).run(args)
    else:
        emulator.subject(descriptor).run(args)
    return args, descriptor.written(args)


def listed(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def amend(node, ball):
    """Exact operations and constants have radii too: their rounding is that of this order."""
    inexact = node.kind == "constant" and node.type in FLOATS and node.data not in (0.0, 0.5, 1.0, 2.0)
    return Ball(ball.v, ball.v.abs().nan_to_num(0.0, 0.0, 0.0) * ROUNDOFF[node.type]) if inexact else ball


def balls_of(descriptor, args, steps=lambda n: 1.0):
    """Each result with its radius; of what is no float None."""
    if isinstance(descriptor, FoldDescriptor):
        found = folds.bounds(descriptor, args, MACHINE, steps, amend)
        balls = [folds.over(descriptor, output, found(output.value)) for output in descriptor.outputs]
    else:
        bounds = bound.Bounds(values_of(descriptor, args), MACHINE, fused=True, amend=amend)
        balls = [bounds(output.value) for output in descriptor.outputs]
    pairs = zip(descriptor.outputs, balls, strict=True)
    return [bound.stored(ball, output.dtype) if output.value.type in FLOATS else None for output, ball in pairs]


def in_f64(info, sample):
    """torch's result from the same inputs as f64; numbers are those of the plan, f32."""

    def wide(value):
        if isinstance(value, torch.Tensor):
            return value.double() if value.is_floating_point() else value
        if isinstance(value, (list, tuple)):
            return type(value)(wide(item) for item in value)
        if isinstance(value, torch.dtype):
            return torch.float64 if value.is_floating_point else value
        return float(torch.tensor(value)) if isinstance(value, float) else value

    return listed(
        info.op(*(wide(arg) for arg in (sample.input, *sample.args)), **{k: wide(v) for k, v in sample.kwargs.items()})
    )


def agrees(got, narrow, exact, ball, beside=0.0):
    """Each element: our result and torch's f64 result within the radius, or the same number as torch's. Without a radius:
    close.
    """
    v, r = ball.v.expand(got.shape), ball.r.expand(got.shape)
    same = (got == narrow) | (got.isnan() & narrow.isnan())
    tolerance = 1.02 * r + 1e-12 * v.abs()
    inside = ((got.double() - v).abs() <= tolerance) & ((exact - v).abs() <= tolerance + beside) & r.isfinite()
    return same | inside | (r.isinf() & torch.isclose(got.double(), exact, rtol=1e-3, atol=1e-6))


@pytest.mark.parametrize("name", sorted(DISTINCT.keys() - OWN))
def test_a_recipe_computes_what_torch_does(name):
    recipe, compiled = DISTINCT[name], []
    infos = [info for one in recipe.names for info in opinfo.variants(one)]
    if not infos:
        pytest.skip("this torch has no OpInfo of it")
    for info in infos:
        for dtype in DTYPES:
            for call in accepted(recipe, info, dtype) if dtype in info.dtypes else ():
                compare(recipe, info, *call)
                compiled.append(has_kernel(call[-1]))
    assert compiled, "no sample is taken"
    assert all(compiled)


def has_kernel(descriptor):
    with suppress(UnsupportedError):
        return bool(Plan.select(descriptor, Preference(backend="cuda"), SM_90A))
    return False


def compare(recipe, info, sample, call, descriptor, backend="reference"):
    args, found = run(recipe, call, descriptor, backend)
    want = [torch.as_tensor(one) for one in listed(info.op(sample.input, *sample.args, **sample.kwargs))]
    assert len(found) == len(want)
    balls = balls_of(descriptor, args, (lambda n: 1.0) if backend == "reference" else (lambda n: n + 17.0))
    for ball, got, narrow, exact in zip(balls, found, want, in_f64(info, sample), strict=True):
        narrow, exact = (
            torch.as_tensor(one).reshape(got.shape) if recipe.name in RESHAPED else torch.as_tensor(one)
            for one in (narrow, exact)
        )
        assert (got.shape, got.dtype) == (narrow.shape, narrow.dtype), call
        if got.is_floating_point():
            fine = agrees(got, narrow, exact.double(), ball, TORCH.get(recipe.name, 0.0))
        else:
            fine = got == narrow
        assert bool(fine.all()), (call, got[~fine][:4], narrow[~fine][:4])
    other = opinfo.Call.of(info, sample.noncontiguous())
    for got, again in zip(found, run(recipe, other, descriptor, backend)[1], strict=True):
        assert not bool(differs(got, again).any()), call


X = torch.linspace(-4, 4, 41)
F = torch.nn.functional
# Arguments that torch's samples leave at their defaults.
PARAMETERS = [
    ("elu", F.elu, {"alpha": 0.7}), ("celu", F.celu, {"alpha": 0.7}), ("leaky_relu", F.leaky_relu, {"negative_slope": 0.3}),
    ("softshrink", F.softshrink, {"lambd": 1.2}), ("hardshrink", F.hardshrink, {"lambd": 1.2}),
    ("hardtanh", F.hardtanh, {"min_val": -0.4, "max_val": 2.2}), ("threshold", F.threshold, {"threshold": 0.5, "value": 7.0}),
    ("rrelu", F.rrelu, {"lower": 0.1, "upper": 0.9}), ("softplus", F.softplus, {"beta": 0.5}),
    ("logit", torch.logit, {"eps": 0.3}),
    ("softplus", F.softplus, {"threshold": 1.0}), ("nan_to_num", torch.nan_to_num, {"nan": 2.0, "posinf": 3.0, "neginf": 4.0}),
    ("round", torch.round, {"decimals": 1}), ("round", torch.round, {"decimals": -1}), ("clamp", torch.clamp, {"max": 1.5}),
    ("glu", F.glu, {"dim": 0}), ("diag", torch.diag, {"diagonal": -3}), ("tril", torch.tril, {"diagonal": 1}),
    ("roll", torch.roll, {"shifts": 5}), ("repeat_interleave", torch.repeat_interleave, {"repeats": 3}),
    ("one_hot", F.one_hot, {"num_classes": 5}), ("diff", torch.diff, {}),
    ("unfold", F.unfold, {"kernel_size": (2, 3), "stride": 2}),
]  # fmt: skip
SHAPES = {"glu": (4, 10), "tril": (5, 8), "roll": (5, 8), "unfold": (2, 1, 5, 4)}


@pytest.mark.parametrize(("name", "function", "options"), PARAMETERS, ids=lambda x: x if isinstance(x, str) else "")
def test_arguments_that_samples_leave_out(name, function, options):
    opinfo.infos()
    from torch.testing._internal.opinfo.core import SampleInput

    x = X.abs().long() if name == "one_hot" else X[1:].reshape(SHAPES[name]) if name in SHAPES else X
    x = torch.cat([x, torch.tensor([torch.inf, -torch.inf, torch.nan])]) if name == "nan_to_num" else x
    sample = SampleInput(x, args=(), kwargs=options)
    info = types.SimpleNamespace(name=name, op=function)
    call = opinfo.Call.of(info, sample)
    compare(DISTINCT[name], info, sample, call, call.descriptor(DISTINCT[name]))
