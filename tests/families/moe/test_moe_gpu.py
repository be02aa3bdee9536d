"""GPU tests of routing, sorting, gathering and combining."""

import pytest

from opfacade import Plan, Preference
from opfacade.plans.moe import EXAMPLES, MoeSortDescriptor, RouteDescriptor
from opfacade.testing import inputs, numerics
from opfacade.testing.bits import same_bits

pytestmark = pytest.mark.gpu
OWN = [d for d in EXAMPLES if d.op != "fused_moe" and not getattr(d, "loads", False)]
LARGE = [
    RouteDescriptor(total_num_rows=8192, experts=256, top_k=8, dtype="f32", renormalise=True),
    MoeSortDescriptor(total_num_rows=8192, top_k=8, experts=256),
    MoeSortDescriptor(total_num_rows=8191, top_k=3, experts=1024, first_expert=256, num_local=512),
]


@pytest.mark.parametrize("descriptor", [*OWN, *LARGE], ids=lambda d: f"{d.op}-{d.digest()[:6]}")
def test_runs_repeat_bitwise(descriptor):
    plan = Plan.select(descriptor, Preference(backend="cuda"))
    args = inputs.make_args(descriptor, seed=1, device="cuda")
    written = [name for name, spec in descriptor.operands().items() if spec.written]
    for name in written:
        getattr(args, name).fill_(7)
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku, rows=64).worst <= 1
    first = {name: getattr(args, name).clone() for name in written}
    for _ in range(50):
        for name in written:
            getattr(args, name).fill_(7)
        plan.run(args)
        assert all(same_bits(getattr(args, name), first[name]) for name in written)


@pytest.mark.parametrize("descriptor", [d for d in EXAMPLES if d.op == "fused_moe"], ids=lambda d: d.digest()[:6])
def test_a_layer_of_the_reference_keeps_its_bound_on_a_gpu(descriptor):
    plan = Plan.select(descriptor, Preference(backend="reference"))
    args = inputs.make_args(descriptor, seed=1, device="cuda")
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku).worst <= 1
