"""Four-bit codes on a GPU: products of many rows, whose codes are decoded first or during the products, have the bits of few
rows.
"""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.backends.cuda.matmul import decoded as matmul_decoded
from opfacade.plan import forget_selections
from opfacade.plans.matmul import MatmulDescriptor, Weight
from opfacade.testing import inputs

pytestmark = pytest.mark.gpu
INT = {"dequantise": "rounded"}
FORMATS = {
    "uint4": Weight(dtype="uint4", group=128, zero="int", **INT),
    "int4": Weight(dtype="int4", group=32, **INT),
    "one scale": Weight(dtype="int4", **INT),
    "float zeros": Weight(dtype="uint4", group=64, zero="float", **INT),
    "f32": Weight(dtype="uint4", group=32, zero="added", scale_dtype="f32", **INT),
    "mxfp4": Weight(dtype="e2m1", group=32, scale_dtype="f8_e8m0"),
    "nvfp4": Weight(dtype="e2m1", group=16, scale_dtype="f8_e4m3", global_scale=True),
}
SIZES = ((1030, 4096, 4096), (1500, 1000, 2880), (1030, 8320, 192))


@pytest.fixture(autouse=True)
def _hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs sm_90a")


def ran(problem, args, impl="wgmma_codes"):
    forget_selections()
    with patch.object(matmul_decoded, "pays", lambda sizes, sms: impl == "wgmma_decoded"):
        plan = Plan.select(problem, Preference(backend="cuda"))
    assert plan.sku.impl == impl
    plan.run(args)
    return args.out.clone()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("impl", ["wgmma_codes", "wgmma_decoded"])
def test_many_rows_have_the_bits_of_few_on_a_gpu(impl, dtype, name, sizes):
    """Three times, because a register that is overwritten too early is only sometimes wrong; f32 hides no bit of a sum."""
    rows, n, k = sizes
    weight = FORMATS[name]
    if dtype == "f16" and weight.scale_dtype == "bf16":
        weight = weight.model_copy(update={"scale_dtype": "f16"})
    if dtype == "f16" and weight.scale_dtype in ("f8_e8m0", "f32"):
        pytest.skip("such scales do not go with f16")
    problem = MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype=dtype, out_dtype="f32", weight_format=weight)
    args = inputs.make_args(problem, 5, "cuda")
    wholes = [ran(problem, replace(args, out=torch.full_like(args.out, torch.nan)), impl) for _ in range(3)]
    for first in range(0, rows, 64):
        stop = min(rows, first + 64)
        part = problem.model_copy(update={"total_num_rows": stop - first}).revalidated()
        few = ran(part, replace(args, x=args.x[first:stop], out=torch.empty_like(args.out[first:stop])))
        assert all(torch.equal(few, whole[first:stop]) for whole in wholes)
