"""Products of few rows on a GPU: bounds, and the bits of the tiles for many rows, also with order="k"."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.plans.matmul import MatmulDescriptor
from opfacade.testing import inputs, numerics
from tests.families.matmul.test_gemv_kernel import FORMS
from tests.families.matmul.test_matmul_kernel import replace_sizes

pytestmark = pytest.mark.gpu
GEMV = Preference(backend="cuda", forbid=("wgmma_tile",))
TILES = Preference(backend="cuda", forbid=("gemv",))


@pytest.fixture(autouse=True)
def _hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernel is for sm_90a")


def ran(problem, args, prefer):
    plan = Plan.select(problem, prefer)
    args.out.fill_(float("nan"))
    plan.run(args)
    return plan, args.out


def moved(tensor, step):
    wide = torch.full((tensor.shape[0], tensor.shape[1] + 2 * step), float("nan"), dtype=tensor.dtype, device="cuda")
    return wide[:, step : step + tensor.shape[1]].copy_(tensor)


@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound_on_a_gpu(name):
    problem, args = FORMS[name], inputs.make_args(FORMS[name], 3, "cuda")
    plan, before = Plan.select(problem, GEMV), numerics.snapshot(problem, args)
    assert plan.sku.impl == "gemv"
    plan.run(args)
    assert numerics.check(problem, args, plan.sku, before=before).worst <= 1


@pytest.mark.parametrize("order", ["free", "k"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (96, 7168), (512, 2048), (1000, 521), (33, 16384), (2112, 7168), (7, 1)])
def test_few_rows_have_the_bits_of_many_on_a_gpu(n, k, dtype, order):
    """One to eight rows, as a server has them, beside 3000 rows, as training has; f32 hides no bit of a sum."""
    most = MatmulDescriptor(total_num_rows=3000, n=n, k=k, dtype=dtype, order=order, out_dtype="f32")
    args = inputs.make_args(most, 5, "cuda")
    plan, whole = ran(most, args, TILES)
    assert plan.sku.impl == "wgmma_tile"
    for rows in (1, 2, 5, 8):
        part, given = replace_sizes(most, total_num_rows=rows), replace(args, x=args.x[:rows])
        for step in (0, 1, 4):
            call = replace(given, x=moved(given.x, step), weight=moved(args.weight, step)) if step else given
            plan, found = ran(part, replace(call, out=torch.empty_like(whole[:rows])), GEMV)
            assert plan.sku.impl == "gemv"
            assert torch.equal(found, whole[:rows])


@pytest.mark.parametrize(("n", "k"), [(300, 4096), (1024, 4096)])
def test_a_trainer_and_a_server_have_the_same_bits_in_order_k(n, k):
    """Kernels that select chooses without a preference; the trainer's operands may lie in any layout."""
    fields = {"n": n, "k": k, "dtype": "bf16", "order": "k", "out_dtype": "f32", "bias": True, "activation": "silu"}
    args = inputs.make_args(MatmulDescriptor(total_num_rows=2048, **fields), 5, "cuda")
    found = []
    for x_layout, weight_layout in (("mk", "nk"), ("mk", "kn"), ("km", "nk"), ("km", "kn")):
        problem = MatmulDescriptor(total_num_rows=2048, x_layout=x_layout, weight_layout=weight_layout, **fields)
        x = args.x if x_layout == "mk" else args.x.mT.contiguous()
        weight = args.weight if weight_layout == "nk" else args.weight.mT.contiguous()
        call = replace(args, x=x, weight=weight, out=torch.empty_like(args.out))
        plan, out = ran(problem, call, Preference())
        assert plan.sku.backend == "cuda"
        found.append(out)
    assert all(torch.equal(found[0], one) for one in found)
    for rows in (1, 3, 8, 9, 64, 200):
        problem = MatmulDescriptor(total_num_rows=rows, **fields)
        _, out = ran(problem, replace(args, x=args.x[:rows], out=torch.empty_like(args.out[:rows])), Preference())
        assert torch.equal(out, found[0][:rows])
