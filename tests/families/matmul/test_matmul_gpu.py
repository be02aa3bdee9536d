"""Products on a GPU: bounds, and bits that no other row changes."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.plans.matmul import MatmulDescriptor, Scaling
from opfacade.testing import inputs, numerics
from tests.families.matmul import test_fp8_kernel
from tests.families.matmul.test_matmul_kernel import FORMS, replace_sizes

ALL = FORMS | {f"fp8-{name}": one for name, one in test_fp8_kernel.FORMS.items()}

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs sm_90a")


def ran(problem, args):
    Plan.select(problem, Preference(backend="cuda")).run(args)
    torch.cuda.synchronize()
    return args.out


@pytest.mark.parametrize("name", ALL)
def test_it_keeps_its_bound_on_a_gpu(name):
    problem, args = ALL[name], inputs.make_args(ALL[name], 3, "cuda")
    plan, before = Plan.select(problem, Preference(backend="cuda")), numerics.snapshot(problem, args)
    plan.run(args)
    assert numerics.check(problem, args, plan.sku, before=before).worst <= 1


def part_of(args, rows):
    scales = {} if args.x_scale is None else {"x_scale": args.x_scale[:rows]}
    return replace(args, x=args.x[:rows], **scales)


TYPES = {"bf16": {"dtype": "bf16"}, "fp8": {"dtype": "f8_e4m3", "scaling": Scaling(kind="block")}}


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (96, 7168), (1000, 520)])
def test_a_row_has_its_bits_among_any_rows_on_a_gpu(n, k, types):
    """Each number of rows has another tile; those off 16 bytes are copied by threads."""
    most = MatmulDescriptor(total_num_rows=3000, n=n, k=k, **TYPES[types])
    args = inputs.make_args(most, 5, "cuda")
    whole = ran(most, args)
    for rows in (1, 8, 33, 64, 65, 129, 1000):
        part = replace_sizes(most, total_num_rows=rows)
        few = replace(part_of(args, rows), out=torch.empty_like(whole[:rows]))
        assert torch.equal(ran(part, few), whole[:rows])
    wide = torch.empty(8, k + 1, dtype=args.x.dtype, device="cuda")[:, :k].copy_(args.x[:8])
    part = replace_sizes(most, total_num_rows=8)
    assert torch.equal(ran(part, replace(part_of(args, 8), x=wide, out=torch.empty_like(whole[:8]))), whole[:8])
