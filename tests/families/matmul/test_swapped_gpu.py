"""Grouped products with rows on N of wgmma have the bits of products with rows on M, on a GPU, also in a replayed graph."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.plans.matmul import GroupedMatmulDescriptor
from opfacade.testing import inputs, numerics
from tests.families.matmul.test_grouped_kernel import swapping

pytestmark = pytest.mark.gpu
EVERY = 2**20
FORMS = {
    "bf16": {"n": 1536, "k": 2048},
    "columns first": {"n": 2880, "k": 2880, "weight_layout": "kn", "bias": True},
    "gathered gates": {
        "n": 768,
        "k": 2048,
        "gated": True,
        "activation": "silu",
        "gather": True,
        "num_x_rows": 100,
        "dtype": "f16",
    },
    "segments": {"n": 256, "k": 4096, "out_dtype": "f32"},
    "odd": {"n": 333, "k": 777, "out_dtype": "f32"},
}
# Rows of 16 groups: few, of every width, and nearly all in one.
COUNTS = {
    "few": [1, 0, 0, 2, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1],
    "widths": [7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 0, 127, 1, 129],
    "one": [0, 0, 1500, 0, 0, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0],
}


@pytest.fixture(autouse=True)
def _hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs sm_90a")


def problem_of(form, rows):
    more = {"dtype": "bf16"} | FORMS[form]
    return GroupedMatmulDescriptor(groups=16, total_num_rows=rows, **more)


def ends_of(counts):
    return torch.tensor([0, *counts], device="cuda").cumsum(0).int()


def args_of(problem, counts):
    made = torch.Generator("cuda").manual_seed(1)
    args = replace(inputs.make_args(problem, 1, "cuda"), indptr=ends_of(counts))
    for tensor, scale in ((args.x, 1.0), (args.weight, problem.k**-0.5)):
        tensor.copy_(torch.randn(tensor.shape, device="cuda", generator=made) * scale)
    if problem.gather:
        args.x_rows.copy_(torch.randint(0, problem.num_x_rows, args.x_rows.shape, device="cuda", generator=made))
    args.out.fill_(7.0)
    return args


def ran(problem, args, rows):
    """Its result, with rows on N for groups of at most so many rows; a plan loads its kernel at its first run."""
    with swapping(rows):
        plan = Plan.select(problem, Preference(backend="cuda"))
        assert dict(plan.sku.spec).get("swapped", False) == (rows > 0)
        before = numerics.snapshot(problem, args)
        plan.run(args)
        torch.cuda.synchronize()
        assert numerics.check(problem, args, plan.sku, before=before).worst <= 1
        return plan, args.out.clone()


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("form", FORMS)
def test_rows_on_n_have_the_bits_of_rows_on_m_on_a_gpu(form, name):
    counts = COUNTS[name]
    problem = problem_of(form, sum(counts) + 3)
    args = args_of(problem, counts)
    (_, want), (_, found) = (ran(problem, replace(args, out=args.out.clone()), rows) for rows in (0, EVERY))
    assert torch.equal(found, want)
    assert bool((found[sum(counts) :] == 7.0).all())


def test_a_captured_product_replays_with_other_counts():
    problem = problem_of("bf16", 700)
    args = args_of(problem, COUNTS["few"])
    plan, _ = ran(problem, args, EVERY)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(args)
    for counts in (COUNTS["widths"], [0] * 16, [0] * 15 + [700], COUNTS["few"]):
        args.indptr.copy_(ends_of(counts))
        args.out.fill_(7)
        graph.replay()
        torch.cuda.synchronize()
        replayed = args.out.clone()
        args.out.fill_(7)
        assert torch.equal(ran(problem, args, 0)[1], replayed)
