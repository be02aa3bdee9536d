"""Every shipped program has a bound that is small relative to its value, over all f16 and bf16 inputs."""

import pytest
import torch

from opfacade.programs.activations import ACTIVATIONS, activation
from opfacade.programs.bound import Bounds, machine_of
from opfacade.programs.evaluate import Evaluation, Values
from opfacade.programs.operations import FUNCTIONS
from opfacade.programs.ulps import APPROXIMATE, documented

HALVES = torch.arange(2**16).to(torch.uint16)
EVERY = torch.cat([HALVES.view(torch.float16).float(), HALVES.view(torch.bfloat16).float()])
ULPS = {"u": 2.0**-24, **{f"ulp.{name}": documented(name, "f32") for name in FUNCTIONS}}
MACHINES = {
    "device": machine_of(ULPS),
    "approx": machine_of(ULPS | {"least": 2.0**-126} | {f"ulp.{name}": ulps for name, ulps in APPROXIMATE.items()}),
}
# Largest ratio of bound to value, in units of 2^-23. The error of exp is proportional to its argument's error.
MOST = {"gelu": 2000, "gelu_tanh": 600, "mish": 60, "elu": 8, "softplus": 20, "sigmoid": 30, "silu": 30}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_shipped_program_has_a_finite_relative_bound(name, machine):
    x = EVERY[EVERY.isfinite() & (EVERY.abs() < 1e30)]
    root = activation(name)
    found = Bounds(Values({("input", "x"): x}), MACHINES[machine])(root)
    normal = found.v.abs() > 2.0**-100
    assert bool(found.r[normal].isfinite().all()), name
    relative = float((found.r / found.v.abs())[normal].max()) * 2**23
    of_exp = 4 * APPROXIMATE["exp"] if machine == "approx" else 0  # mish has a quotient of squares of 1 + exp(x)
    assert relative <= MOST.get(name, 10) + of_exp, relative
    if root.exact:
        assert not bool(found.r.any())
    got = Evaluation(Values({("input", "x"): x})).own(root).double()
    error = (got - found.v).abs().masked_fill(got == found.v, 0.0)
    assert bool((error <= found.r).all()), float((error / found.r).max())
    assert bool(found.r[x < 80].isfinite().all())


@pytest.mark.parametrize(
    ("name", "at", "want"),
    [
        ("silu", -float("inf"), -0.0), ("silu", float("inf"), float("inf")), ("relu", -0.0, 0.0), ("gelu", 1e5, 1e5),
        ("gelu", -float("inf"), 0.0), ("softplus", 1e30, 1e30), ("softplus", -1e30, 0.0), ("mish", 1e30, 1e30),
        ("sigmoid", -float("inf"), 0.0), ("mish", -float("inf"), 0.0),
        ("elu", -float("inf"), -1.0), ("gelu_tanh", -float("inf"), 0.0), ("hard_swish", -5.0, 0.0),
    ],
)  # fmt: skip
def test_limits(name, at, want):
    got = float(Evaluation(Values({("input", "x"): torch.tensor(at)})).own(activation(name)))
    assert got == float(torch.tensor(want))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nan_stays_nan(name):
    assert Evaluation(Values({("input", "x"): torch.tensor(float("nan"))})).own(activation(name)).isnan()
