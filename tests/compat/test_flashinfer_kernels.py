"""Programs of FlashInfer's calls stay below their limit of kernels, and each problem has a kernel for sm_90a."""

import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade import Plan, Preference, Target
from opfacade.compat import selecting
from opfacade.plans.elementwise import MapDescriptor
from opfacade.plans.reduction import FoldDescriptor
from opfacade.testing import inputs, numerics
from tests import emulator

E4M3 = torch.float8_e4m3fn
X, WEIGHT = torch.ones(5, 7, 72).half(), torch.ones(65).half()
HEADS = X[:, :3, :65]
Q, K = X[:, :3, :64], X[:, 3:5, :64]
AT, TABLE = torch.arange(5), torch.ones(9, 64)
CALLS = {
    "heads": lambda: flashinfer.gemma_rmsnorm(HEADS, WEIGHT),
    "heads in place": lambda: flashinfer.rmsnorm(HEADS, WEIGHT, out=HEADS),
    "positions": lambda: flashinfer.apply_llama31_rope_pos_ids(Q, K, AT.int(), 30),
    "fp8": lambda: flashinfer.rope.rope_quantize_fp8(Q, K[:, 0], Q, None, TABLE, AT, False, quant_scale_q=3.0),
    "added": lambda: flashinfer.fused_add_rmsnorm_quant(X[:, 0].to(E4M3), X[:, 0], X[:, 1].clone(), X[0, 0], 2.0),
    "layer": lambda: flashinfer.layernorm_quant(X[:, 0].to(E4M3), X[:, 0], X[0, 0].float(), X[0, 0].float(), 2.0),
    "silu": lambda: flashinfer.fused_rmsnorm_silu(X[:, 0], X[0, 0]),
    "gates": lambda: flashinfer.silu_and_mul(X),
    "groups": lambda: flashinfer.quantization.per_token_group_quant_8bit(X, 24),
    "slots": lambda: flashinfer.top_k_ragged_transform(X[:, 0], AT.int(), AT.int(), 3),
}


@pytest.fixture(params=CALLS)
def problems(request, monkeypatch):
    """Descriptors of a call."""
    kept = {}
    monkeypatch.setattr(selecting, "_descriptors", kept)
    CALLS[request.param]()
    assert kept
    return tuple(kept.values())


def test_each_problem_has_a_kernel(problems):
    for problem in problems:
        assert Plan.select(problem, Preference(backend="cuda"), Target.parse("sm_90a")).sku.backend == "cuda"


@emulator.needed
def test_programs_keep_their_bounds(problems):
    for problem in problems:
        if not isinstance(problem, (MapDescriptor, FoldDescriptor)):
            continue  # families have separate tests
        subject, args = emulator.subject(problem), inputs.make_args(problem, 3)
        before = numerics.snapshot(problem, args)
        subject.run(args)
        found = numerics.check(problem, args, subject.plan.sku, before=before)
        assert found.worst <= 1, found
