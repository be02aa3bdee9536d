"""The bound with factors of K and V, with a sink, or with values narrower than keys: correct kernels are within, faults are
not.
"""

import math

import pytest
import torch

from opfacade.backends.cuda.attention.facts import error_model
from opfacade.testing import numerics
from opfacade.testing.families.attention import bound
from tests.support.rounding_model import Machine, attention

ROWS = 6
MACHINES = {"bf16": Machine(torch.bfloat16), "f16": Machine(torch.float16), "bf16 split": Machine(torch.bfloat16, splits=5)}
NAMES = {torch.bfloat16: "bf16", torch.float16: "f16"}


def rounded(x, dtype=torch.float32):
    return x.to(dtype).double()


class Problem:
    """q as stored; raw K and V of fp8; f32 factors and sinks."""

    def __init__(self, machine, n, *, fp8=torch.float8_e4m3fn, dim=128, dv=128, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.machine, self.scale = machine, dim**-0.5
        self.q = torch.randn(ROWS, dim, generator=g).to(machine.dtype).double()
        self.k, self.v = (torch.randn(n, d, generator=g).to(fp8 or machine.dtype).double() for d in (dim, dv))
        self.k_scale, self.v_scale = (
            (rounded(torch.rand(1, generator=g).double() + 0.5) for _ in range(2)) if fp8 else (1.0, 1.0)
        )
        self.sink = rounded(torch.randn(ROWS, generator=g).double() * 2 + 3)
        self.n, self.seed = n, seed

    def kernel(self, k_scale=None, v_scale=None, sink=None, kept=slice(None)):
        """Arithmetic: the factor of K is multiplied into the scale; the factor of V and the sink are applied at the end, each
        rounded to f32.
        """
        k_scale, v_scale = self.k_scale if k_scale is None else k_scale, self.v_scale if v_scale is None else v_scale
        seen = torch.ones(ROWS, self.k[kept].shape[0], dtype=torch.bool)
        scale = float(rounded(torch.as_tensor(self.scale * k_scale)))
        machine = self.machine.but(dtype=torch.float32, p_dtype=self.machine.dtype)  # o stays in f32 until the end
        o, lse = attention(machine, self.q, self.k[kept], self.v[kept], scale, seen, self.seed)
        sink = self.sink if sink is None else sink
        total = rounded(torch.logaddexp(lse, sink))
        damped = rounded(o * rounded((lse - total).exp()[:, None]))
        return rounded(damped * v_scale, self.machine.dtype), total

    def worst(self, got):
        c = dict(error_model(NAMES[self.machine.dtype], 64, self.machine.splits > 1).constants) | {"scaled": 1.0}
        worst = 0.0
        for r in range(ROWS):
            seen = torch.ones(1, self.n, dtype=torch.bool)
            k, v = self.k * self.k_scale, self.v * self.v_scale
            row = bound.ErrorRow(self.q[None, r : r + 1], k[None], v[None], seen, self.scale, 0.0, self.sink[None, r : r + 1])
            bounded = bound.attention_bounds(row, c, NAMES[self.machine.dtype])
            report = numerics.compare(bounded, {"o": got[0][None, r : r + 1], "lse": got[1][None, r : r + 1]})
            worst = max(worst, report.worst, report.worst_tight)
        return worst


KINDS = [{"fp8": torch.float8_e4m3fn}, {"fp8": torch.float8_e5m2}, {"fp8": None, "dim": 576, "dv": 512}]


@pytest.mark.parametrize("kind", KINDS, ids=["e4m3", "e5m2", "latent"])
@pytest.mark.parametrize("machine", MACHINES)
def test_a_sound_kernel_stays_within(machine, kind):
    for n in (1, 17, 400):
        problem = Problem(MACHINES[machine], n, seed=n, **kind)
        assert problem.worst(problem.kernel()) <= 1, n


def test_the_bound_is_not_far_above_a_sound_kernel():
    problem = Problem(MACHINES["f16"], 300, seed=2)
    assert problem.worst(problem.kernel()) > 0.05


FAULTS = {
    "no factor of K": {"k_scale": 1.0},
    "no factor of V": {"v_scale": 1.0},
    "a factor of K off by 2^-6": {"k_scale": 1 + 2**-6},
    "no sink": {"sink": torch.full((ROWS,), -math.inf, dtype=torch.float64)},
    "a scaled sink": {"sink": 0.9},
    "the last key dropped": {"kept": slice(0, -1)},
}


@pytest.mark.parametrize("machine", ["bf16", "f16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_beyond(machine, fault):
    problem, change = Problem(MACHINES[machine], 300, seed=7), dict(FAULTS[fault])
    if fault.startswith("a factor"):
        change["k_scale"] = problem.k_scale * change["k_scale"]
    if fault == "a scaled sink":
        change["sink"] = problem.sink * change["sink"]
    assert problem.worst(problem.kernel(**change)) > 1


def test_a_row_without_keys_is_its_sink():
    c = dict(error_model("bf16", 64, True).constants)
    seen = torch.zeros(1, 3, dtype=torch.bool)
    zeros = torch.ones(1, 3, 4, dtype=torch.float64)
    sink = torch.tensor([[1.25]], dtype=torch.float64)
    o, lse = bound.attention_bounds(bound.ErrorRow(zeros[:, :1], zeros, zeros, seen, 1.0, 0.0, sink), c, "bf16")
    assert bool((o.want == 0).all())
    assert bool((o.hard == 0).all())
    assert float(lse.want) == 1.25
    assert float(lse.hard) < 1e-5
