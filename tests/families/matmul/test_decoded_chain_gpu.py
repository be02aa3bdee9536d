"""Codes of any format on a GPU: products whose weight is decoded first have the bits of the kernel that decodes each tile."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.backends.cuda.matmul import decoded_chain as matmul_decoded_chain
from opfacade.plan import forget_selections
from opfacade.plans.matmul import MatmulDescriptor, Weight
from opfacade.testing import inputs, numerics

pytestmark = pytest.mark.gpu
IMPL = "wgmma_decoded_chain"
FORMATS = {
    "activation order": Weight(dtype="uint4", num_groups=40, zero="int", dequantise="rounded"),
    "ordered floats": Weight(dtype="uint4", num_groups=40, zero="float", scale_dtype="f32", dequantise="rounded"),
    "exact order": Weight(dtype="uint4", num_groups=40, zero="int"),
    "e4m3": Weight(dtype="f8_e4m3", scale_dtype="f32"),
    "groups of 16": Weight(dtype="int4", group=16, dequantise="rounded"),
}
SIZES = ((1030, 4096, 4096), (700, 1000, 2888), (300, 8320, 77))


@pytest.fixture(autouse=True)
def _hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs sm_90a")


def ran(problem, args, impl):
    forget_selections()
    with patch.object(matmul_decoded_chain, "pays", lambda work: impl == IMPL):
        plan = Plan.select(problem, Preference(backend="cuda"))
    assert plan.sku.impl == impl
    plan.run(args)
    return args.out.clone()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_a_row_has_the_bits_of_the_tile_kernel_on_a_gpu(name, sizes):
    """Calls follow each other without a pause, so that a launch that does not wait for the other shows; f32 hides no bit of a
    sum."""
    rows, n, k = sizes
    problem = MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype="bf16", out_dtype="f32", weight_format=FORMATS[name])
    args = inputs.make_args(problem, 5, "cuda")
    tiles = ran(problem, replace(args, out=torch.full_like(args.out, torch.nan)), "wgmma_tile")
    for few in (1, 16, 64, 300, rows, rows):
        part = problem.model_copy(update={"total_num_rows": few}).revalidated()
        call = replace(args, x=args.x[:few], out=torch.full_like(args.out[:few], torch.nan))
        assert torch.equal(ran(part, call, IMPL), tiles[:few])
    assert numerics.check(problem, replace(args, out=tiles), Plan.select(problem).sku, rows=2).worst <= 1
