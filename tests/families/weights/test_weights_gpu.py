"""GPU tests of weight conversions."""

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.plans.weights import EXAMPLES, PackWeightsDescriptor, Weight
from opfacade.testing import inputs, numerics

pytestmark = pytest.mark.gpu
LARGE = (
    PackWeightsDescriptor(
        source="awq", n=2048, k=2880, batch=2, weight_format=Weight(dtype="uint4", group=64, scale_dtype="f16", zero="int")
    ),
    PackWeightsDescriptor(
        source="tinygemm", n=2048, k=2048, weight_format=Weight(dtype="int4", group=128, zero="added")
    ),
)  # fmt: skip


@pytest.mark.parametrize("d", [*EXAMPLES, *LARGE], ids=lambda d: f"{d.op}-{d.source}-{d.digest()[:4]}")
def test_conversions_are_exact_on_a_gpu(d):
    args = inputs.make_args(d, seed=3, device="cuda")
    plan = Plan.select(d, Preference(backend="cuda"))
    assert plan.workspace_size == 0
    plan.run(args)
    assert numerics.check(d, args, plan.sku).worst == 0


def test_a_captured_graph_repacks_new_weights_at_the_same_addresses():
    d = EXAMPLES[0]
    args, plan = inputs.make_args(d, seed=1, device="cuda"), Plan.select(d, Preference(backend="cuda"))
    plan.run(args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(args)
    for seed in (2, 3):
        new = inputs.make_args(d, seed=seed, device="cuda")
        for name in ("stored_weight", "stored_scale", "stored_zero"):
            getattr(args, name).copy_(getattr(new, name))
        args.weight.fill_(0x5A), args.weight_zero.fill_(0x5A)
        graph.replay()
        assert numerics.check(d, args, plan.sku).worst == 0
