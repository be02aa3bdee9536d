"""Products on a GPU: bounds, and bits that no other row changes."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.plans.matmul import MatmulDescriptor
from opfacade.testing import inputs, numerics
from tests.families.matmul.test_matmul_kernel import FORMS, replace_sizes

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs sm_90a")


def ran(problem, args):
    Plan.select(problem, Preference(backend="cuda")).run(args)
    torch.cuda.synchronize()
    return args.out


@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound_on_a_gpu(name):
    problem, args = FORMS[name], inputs.make_args(FORMS[name], 3, "cuda")
    plan, before = Plan.select(problem, Preference(backend="cuda")), numerics.snapshot(problem, args)
    plan.run(args)
    assert numerics.check(problem, args, plan.sku, before=before).worst <= 1


@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (96, 7168), (1000, 520)])
def test_a_row_has_its_bits_among_any_rows_on_a_gpu(n, k):
    """Each number of rows has another tile; those off 16 bytes are copied by threads."""
    most = MatmulDescriptor(total_num_rows=3000, n=n, k=k, dtype="bf16")
    args = inputs.make_args(most, 5, "cuda")
    whole = ran(most, args)
    for rows in (1, 8, 33, 64, 65, 129, 1000):
        part = replace_sizes(most, total_num_rows=rows)
        few = replace(args, x=args.x[:rows], out=torch.empty_like(whole[:rows]))
        assert torch.equal(ran(part, few), whole[:rows])
    wide = torch.empty(8, k + 1, dtype=torch.bfloat16, device="cuda")[:, :k].copy_(args.x[:8])
    part = replace_sizes(most, total_num_rows=8)
    assert torch.equal(ran(part, replace(args, x=wide, out=torch.empty_like(whole[:8]))), whole[:8])
