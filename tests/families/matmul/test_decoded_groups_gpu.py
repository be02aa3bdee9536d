"""Groups of many rows on a GPU, whose weight codes are decoded first: the bits of the kernel for few rows."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.testing import inputs, numerics
from tests.families.matmul.test_copied_gpu import on_gpu
from tests.families.matmul.test_copied_groups import made
from tests.families.matmul.test_decoded_groups import FORMS, WEIGHTS, paid
from tests.families.matmul.test_grouped_kernel import drawn

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs sm_90a")


def ran(problem, args, whether=True):
    before = numerics.snapshot(problem, args)
    with paid(whether):
        plan = Plan.select(problem, Preference(backend="cuda"))
        assert plan.sku.impl == ("wgmma_decoded_groups" if whether else "mma_grouped_codes")
        plan.run(args)
    torch.cuda.synchronize()
    assert numerics.check(problem, args, plan.sku, before=before).worst <= 1
    return args.out


@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound_on_a_gpu(name):
    ran(FORMS[name], on_gpu(drawn(FORMS[name])))


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize(("n", "k", "gather"), [(2880, 2880, False), (2880, 2880, True), (1000, 520, False)])
def test_a_row_has_the_bits_of_the_kernel_of_few_on_a_gpu(n, k, gather, name):
    """Groups of one row, of some and of many; f32 hides no bit of a sum."""
    more = {"gather": True, "num_x_rows": 300} if gather else {}
    problem = made(WEIGHTS[name], groups=9, rows=1500, n=n, k=k, out_dtype="f32", **more)
    args = inputs.make_args(problem, 5, "cuda")
    args.x.copy_(torch.randn(args.x.shape, generator=torch.Generator().manual_seed(5)))
    indptr = torch.tensor([3, 4, 4, 68, 133, 133, 300, 301, 900, 1490], dtype=torch.int32, device="cuda")
    few = ran(problem, replace(args, indptr=indptr, out=torch.zeros_like(args.out)), False)
    for _ in range(3):
        many = ran(problem, replace(args, indptr=indptr, out=torch.zeros_like(args.out)))
        assert torch.equal(many, few)


def test_a_graph_replays_with_other_counts_on_a_gpu():
    """The weight of a group that had no rows in the first call is decoded in the second."""
    problem = made(WEIGHTS["mxfp4"], groups=16, rows=256, n=320, k=640)
    args = inputs.make_args(problem, 5, "cuda")
    args.x.copy_(torch.randn(args.x.shape, generator=torch.Generator().manual_seed(5)))
    with paid(True):
        plan = Plan.select(problem, Preference(backend="cuda"))
        plan.run(args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(args)
    for seed in range(3):
        cuts = torch.randint(0, 257, (17,), generator=torch.Generator().manual_seed(seed)).sort().values.int()
        args.indptr.copy_(cuts), args.out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert numerics.check(problem, args, plan.sku).worst <= 1
        assert torch.equal(args.out, ran(problem, replace(args, out=torch.zeros_like(args.out)), False))
