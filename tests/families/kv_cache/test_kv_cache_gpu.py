"""GPU tests of the paged KV cache append."""

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.plans.kv_cache import EXAMPLES
from opfacade.testing import inputs, numerics
from opfacade.testing.families.attention.requests import same_bits

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("descriptor", EXAMPLES, ids=lambda d: d.page_table)
def test_runs_repeat_bitwise(descriptor):
    plan = Plan.select(descriptor, Preference(backend="cuda"))
    args = inputs.make_args(descriptor, seed=1, device="cuda")
    before = (args.k_data.clone(), args.v_data.clone())
    most = 0 if descriptor.copies else 1  # largest allowed error, in units of the bound
    first = None
    for _ in range(20):
        args.k_data.copy_(before[0])
        args.v_data.copy_(before[1])
        plan.run(args)
        assert numerics.check(descriptor, args, plan.sku, before=before).worst <= most
        pools = {"k_data": args.k_data.clone(), "v_data": args.v_data.clone()}
        first = first or pools
        assert all(same_bits(pool, first[name]) for name, pool in pools.items())


def test_a_captured_append_uses_the_current_page_table():
    descriptor = EXAMPLES[1]
    plan = Plan.select(descriptor, Preference(backend="cuda"))
    new = [10, 0, 3, 30, 20]
    first, other = (
        inputs.make_args(descriptor, seed=seed, device="cuda", lengths=inputs.DrawnLengths(q=new, kv=kv))
        for seed, kv in ((2, [20, 5, 3, 33, 39]), (3, [39, 0, 12, 30, 21]))
    )
    plan.run(first)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(first)
    first.block_table.fill_(-1)[:, : other.block_table.shape[1]] = other.block_table[:, : first.block_table.shape[1]]
    first.kv_lens.copy_(other.kv_lens)
    before = (first.k_data.clone(), first.v_data.clone())
    graph.replay()
    assert numerics.check(descriptor, first, plan.sku, before=before).worst == 0
