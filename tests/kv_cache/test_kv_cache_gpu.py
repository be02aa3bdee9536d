"""What only a GPU can show of the paged append."""

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.plans.kv_cache import EXAMPLES
from opfacade.testing import inputs, numerics

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("descriptor", EXAMPLES, ids=lambda d: d.page_table)
def test_runs_repeat_bitwise(descriptor):
    plan = Plan.select(descriptor, Preference(backend="cuda"))
    args = inputs.make_args(descriptor, seed=1, device="cuda")
    before = (args.k_data.clone(), args.v_data.clone())
    for _ in range(20):
        args.k_data.copy_(before[0])
        args.v_data.copy_(before[1])
        plan.run(args)
        assert numerics.check(descriptor, args, plan.sku, before=before).worst == 0


def test_a_captured_append_follows_the_table():
    descriptor = EXAMPLES[1]
    plan = Plan.select(descriptor, Preference(backend="cuda"))
    args = inputs.make_args(descriptor, seed=2, device="cuda")
    plan.run(args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(args)
    other = inputs.make_args(descriptor, seed=3, device="cuda")
    width = min(args.block_table.shape[1], other.block_table.shape[1])
    if other.kv_lens.max() > width * descriptor.paged_kv.page_size:
        pytest.fail("the second table does not fit the first: choose other seeds")
    args.block_table[:, :width].copy_(other.block_table[:, :width])
    for name in ("kv_lens", "append_indptr"):
        getattr(args, name).copy_(getattr(other, name))
    before = (args.k_data.clone(), args.v_data.clone())
    graph.replay()
    assert numerics.check(descriptor, args, plan.sku, before=before).worst == 0
