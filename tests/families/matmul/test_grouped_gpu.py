"""Grouped products on a GPU: ranges of k, replays with other tables, and tensors of more than 2^31 elements."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.plans.matmul import GroupedMatmulArgs, GroupedMatmulDescriptor, MatmulArgs, MatmulDescriptor
from opfacade.testing import inputs, numerics
from tests.families.matmul.test_k_groups_kernel import ACROSS, FORMS, along, drawn, made

pytestmark = pytest.mark.gpu
BEYOND = 2**31


@pytest.fixture(autouse=True)
def _hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs sm_90a")


def on_gpu(args):
    tensors = {name: getattr(args, name) for name in type(args).__slots__}
    return replace(args, **{name: one.cuda() for name, one in tensors.items() if one is not None})


def ran(problem, args):
    Plan.select(problem, Preference(backend="cuda")).run(args)
    torch.cuda.synchronize()
    return args.out


@pytest.mark.parametrize("name", FORMS)
def test_a_range_of_k_keeps_its_bound_on_a_gpu(name):
    problem, args = FORMS[name], on_gpu(drawn(FORMS[name]))
    plan, before = Plan.select(problem, Preference(backend="cuda")), numerics.snapshot(problem, args)
    plan.run(args)
    assert numerics.check(problem, args, plan.sku, before=before).worst <= 1


LARGE = {
    "gradients": made(groups=6, rows=1000, n=1160, k=3000, **ACROSS),
    "rows": made(groups=6, rows=200, n=520, k=3000, out_dtype="f32"),
    "off 16 bytes": made(groups=6, rows=333, n=517, k=2001, **ACROSS),
}
ENDS = [7, 64, 64, 77, 1000, 1992, 1993]


def alone(problem, args, group):
    first, stop = args.indptr[group : group + 2].tolist()
    one = MatmulDescriptor(
        total_num_rows=problem.total_num_rows, n=problem.n, k=stop - first, dtype=problem.dtype, x_layout=problem.x_layout,
        weight_layout=problem.weight_layout, out_dtype=problem.result, order="k",
    )  # fmt: skip
    x, weight = along(args.x, problem.x_layout, first, stop), along(args.weight, problem.weight_layout, first, stop)
    return ran(one, MatmulArgs(x=x, weight=weight, out=torch.zeros_like(args.out[group])))


@pytest.mark.parametrize("name", LARGE)
def test_a_group_of_k_has_the_bits_of_its_product_on_a_gpu(name):
    problem = LARGE[name]
    args = on_gpu(drawn(problem, ENDS))
    ran(problem, args)
    for group in range(problem.groups):
        assert torch.equal(args.out[group], alone(problem, args, group)), group


def test_a_captured_product_replays_with_other_ranges():
    problem = LARGE["gradients"]
    args = on_gpu(drawn(problem, [0, 500, 1000, 1500, 2000, 2500, 3000]))
    plan = Plan.select(problem, Preference(backend="cuda"))
    plan.run(args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(args)
    for ends in (ENDS, [0, 0, 0, 0, 0, 0, 3000], [3000] * 7, [0, 1, 66, 129, 900, 2999, 3000]):
        args.indptr.copy_(torch.tensor(ends))
        args.out.fill_(7)
        graph.replay()
        torch.cuda.synchronize()
        replayed = args.out.clone()
        args.out.fill_(7)
        assert torch.equal(ran(problem, args), replayed)
        assert bool((replayed[torch.tensor(ends).diff() == 0] == 0).all())


def normal(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=torch.Generator("cuda").manual_seed(1))


def close(got, want):
    torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=1e-2)


@pytest.mark.parametrize(("n", "k"), [(7168, 64), (64, 7168)], ids=["out", "x"])
def test_rows_behind_2_31_elements_are_those_of_their_group(n, k):
    rows = BEYOND // 7168 + 300
    problem = GroupedMatmulDescriptor(groups=3, total_num_rows=rows, n=n, k=k, dtype="bf16")
    x, weight = normal(rows, k), normal(3, n, k)
    ends = [0, 100, rows - 200, rows]
    out = torch.full((rows, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    indptr = torch.tensor(ends, device="cuda", dtype=torch.int32)
    ran(problem, GroupedMatmulArgs(x=x, weight=weight, out=out, indptr=indptr))
    for group, part in ((0, slice(0, 100)), (1, slice(rows - 300, rows - 200)), (2, slice(rows - 200, rows))):
        close(out[part], x[part].double() @ weight[group].double().T)
    assert bool(out.isfinite().all())


def test_a_group_behind_2_31_elements_has_its_sums():
    groups, rows, n = 80, 4096, 7168
    assert groups * rows * n > BEYOND
    problem = GroupedMatmulDescriptor(
        groups=groups, total_num_rows=rows, n=n, k=groups * 20, dtype="bf16", layout="k", **ACROSS
    )
    x, weight = normal(groups * 20, rows), normal(groups * 20, n)
    indptr = torch.arange(groups + 1, device="cuda", dtype=torch.int32) * 20
    out = torch.full((groups, rows, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    ran(problem, GroupedMatmulArgs(x=x, weight=weight, out=out, indptr=indptr))
    for group in (0, 75, 79):
        part = slice(20 * group, 20 * group + 20)
        close(out[group, -100:], x[part, -100:].double().T @ weight[part].double())
    assert bool(out.isfinite().all())


def test_elements_of_k_behind_2_31_have_their_terms():
    """x has more elements than 2^31, and the last group has the last ones."""
    rows, n = 4096, 64
    k = BEYOND // rows + 200
    problem = made(groups=2, rows=rows, n=n, k=k, out_dtype="f32", **ACROSS)
    args = inputs.make_args(problem.model_copy(update={"k": 8}).revalidated(), 1, "cuda")
    x, weight = normal(k, rows), normal(k, n)
    indptr = torch.tensor([0, 50, k], device="cuda", dtype=torch.int32)
    first = replace(args, x=x, weight=weight, indptr=indptr)
    ran(problem, first)
    last = first.out[1].clone()
    indptr.copy_(torch.tensor([0, k - 130, k]))
    ran(problem, first)
    close(first.out[1], x[-130:].double().T @ weight[-130:].double())
    want = torch.zeros(rows, n, device="cuda", dtype=torch.float64)
    for begin in range(50, k, 2**16):
        want += x[begin : min(begin + 2**16, k)].double().T @ weight[begin : min(begin + 2**16, k)].double()
    torch.testing.assert_close(last.double(), want, rtol=1e-3, atol=4.0)  # the results are about 700
