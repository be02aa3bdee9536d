"""Infinite scales on an emulated device: in every kernel, the scale of a column, or of all columns, multiplies the sum as IEEE
defines it.
"""

import math
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Target
from opfacade.backends.cuda.matmul import decoded_groups as matmul_decoded_groups
from opfacade.core.descriptor import forget_specializations
from opfacade.plan import forget_selections
from opfacade.plans.matmul import GroupedMatmulDescriptor, MatmulDescriptor, Scaling, Weight
from opfacade.testing import inputs, numerics
from tests import emulator

ADA = Target.parse("sm_89")
E4M3 = Weight(dtype="f8_e4m3", scale_dtype="f32")
ALL = Weight(dtype="f8_e4m3", scale_dtype="f32", global_scale=True)
NVFP4 = Weight(dtype="e2m1", group=16, scale_dtype="f8_e4m3", global_scale=True)
SIZES = {"total_num_rows": 4, "n": 8, "out_dtype": "f32"}
BYTES = {"dtype": "f8_e4m3", "scaling": Scaling(kind="token")}
INT4 = Weight(dtype="int4", scale_dtype="f32", dequantise="group_sum")


def one(weight, k=256, dtype="bf16", **more):
    return MatmulDescriptor(**SIZES, k=k, dtype=dtype, weight_format=weight, **more)


def groups(weight, k=256):
    return GroupedMatmulDescriptor(**SIZES, groups=1, k=k, dtype="bf16", weight_format=weight)


# (implementation, problem, its device; None: one of sm_90a)
CASES = {
    "tiles": ("wgmma_tile", one(E4M3), None),
    "tiles with a global scale": ("wgmma_tile", one(ALL), None),
    "bytes before sm_90": ("mma_byte_codes", one(ALL), ADA),
    "rows of e4m3": ("wgmma_codes", one(INT4, **BYTES), None),
    "many rows of e4m3": ("wgmma_codes", one(INT4, **BYTES).model_copy(update={"total_num_rows": 140}), None),
    "codes with a global scale": ("wgmma_codes", one(NVFP4), None),
    "groups": ("mma_grouped_codes", groups(ALL), None),
    "groups of nvfp4": ("mma_grouped_codes", groups(NVFP4), None),
    "decoded groups": ("wgmma_decoded_groups", groups(ALL), None),
    "segments of decoded groups": ("wgmma_decoded_groups", groups(NVFP4, 1088), None),
}


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


def run(problem, args, impl, device):
    forget_specializations(), forget_selections()
    with patch.object(matmul_decoded_groups, "pays", lambda *sizes: impl == "wgmma_decoded_groups"):
        subject = emulator.subject(problem, device_like=device)
        assert subject.plan.sku.impl == impl
        subject.run(args)
    forget_specializations(), forget_selections()
    return subject.plan.sku


@emulator.needed
@pytest.mark.parametrize("name", CASES)
def test_an_infinite_scale_multiplies_the_sum(name):
    """Rows of x alternate between 1 and -1 from some element on: infinite terms have both signs, and sums are 2, -2, 0 and 0.
    All columns contain the number 1."""
    impl, problem, device = CASES[name]
    problem = problem.revalidated()
    args, k = inputs.make_args(problem, 1), problem.k
    x = torch.zeros(problem.total_num_rows, k)
    x[:, ::2], x[:, 1::2] = 1.0, -1.0
    x[0, 1], x[1, 0], x[3] = 1.0, -1.0, 0.0
    args.x.copy_(x.to(args.x.dtype))
    weight, codes = problem.weight_format, args.weight
    if weight.packed:
        codes.fill_(0x22 if weight.dtype == "e2m1" else 0x11)
    else:
        codes.copy_(torch.ones(codes.shape).to(codes.dtype))
    args.weight_scale.copy_(torch.ones(args.weight_scale.shape).to(args.weight_scale.dtype))
    if weight.global_scale:
        args.weight_global.fill_(-math.inf)
    else:
        args.weight_scale.fill_(-math.inf)
    if problem.scaling is not None:
        args = replace(args, x_scale=torch.ones_like(args.x_scale))
    if isinstance(problem, GroupedMatmulDescriptor):
        args.indptr.copy_(torch.tensor([0, problem.total_num_rows]))
    run(problem, args, impl, device)
    found = [str(one) for one in args.out[:4, 3].tolist()]
    assert found == ["-inf", "inf", "nan", "nan"]


BLOCKS = MatmulDescriptor(total_num_rows=4, n=8, k=320, dtype="f8_e4m3", out_dtype="f32", scaling=Scaling(kind="block"))
IN_BLOCKS = {
    "reference": (None, BLOCKS),
    "tiles": ("wgmma_tile", BLOCKS),
    "groups": (
        "wgmma_groups",
        GroupedMatmulDescriptor(
            groups=1, total_num_rows=4, n=8, k=320, dtype="f8_e4m3", out_dtype="f32", scaling=Scaling(kind="block")
        ),
    ),
}


@emulator.needed
@pytest.mark.parametrize("operand", ["x_scale", "weight_scale"])
@pytest.mark.parametrize("name", IN_BLOCKS)
def test_an_infinite_scale_multiplies_the_sum_of_its_block(name, operand):
    """The scale of the second block of k. Sums there are 2, -2, 0 and 1 where other blocks hold 1 alone."""
    impl, problem = IN_BLOCKS[name]
    args = inputs.make_args(problem, 1)
    x = torch.ones(4, 320)
    x[:, 128:256:2], x[:, 129:256:2] = 1.0, -1.0
    x[0, 129], x[1, 128], x[3, 129] = 1.0, -1.0, 0.0
    args.x.copy_(x.to(args.x.dtype)), args.weight.copy_(torch.ones(args.weight.shape).to(args.weight.dtype))
    args.x_scale.fill_(1.0), args.weight_scale.fill_(1.0)
    getattr(args, operand)[..., 1] = math.inf
    if impl is None:
        Plan.select(problem, target=Target.cpu()).run(args)
    else:
        if isinstance(problem, GroupedMatmulDescriptor):
            args.indptr.copy_(torch.tensor([0, 4]))
        subject = emulator.subject(problem)
        assert subject.plan.sku.impl == impl
        subject.run(args)
    assert [str(one) for one in args.out[:, 3].tolist()] == ["inf", "-inf", "nan", "inf"]
    before = numerics.snapshot(problem, args)
    sku = Plan.select(problem, target=Target.cpu()).sku if impl is None else subject.plan.sku
    assert numerics.check(problem, args, sku, before=before).worst <= 1
    args.out[2, 3] = math.inf
    assert numerics.check(problem, args, sku, before=before).worst > 1


CODES = {"dtype": "uint4", "group": 32, "zero": "int"}
LOST = {
    "reference": (None, one(Weight(**CODES))),
    "sums of groups": ("wgmma_codes", one(Weight(**CODES))),
    "sums of groups, many rows": ("wgmma_codes", one(Weight(**CODES)).model_copy(update={"total_num_rows": 140})),
    "numbers in two terms": ("wgmma_tile", one(Weight(**CODES), k=264)),
    "numbers in one term": ("wgmma_codes", one(Weight(dtype="e2m1", group=32, scale_dtype="f8_e8m0"))),
    "experts": ("wgmma_grouped_codes", groups(Weight(**CODES)).model_copy(update={"total_num_rows": 40})),
    "few rows of experts": ("mma_grouped_codes", groups(Weight(**CODES))),
}


@emulator.needed
@pytest.mark.parametrize("scale", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", LOST)
def test_a_scale_of_a_group_that_is_not_finite_loses_its_column(name, scale):
    """Each row of that column, also where x or all sums are 0, and no other column. The harness accepts any infinity or NaN
    there, and no finite number."""
    impl, problem = LOST[name]
    problem = problem.revalidated()
    args = inputs.make_args(problem, 1)
    args.x.copy_(torch.arange(args.x.numel()).reshape(args.x.shape) % 5 - 2), args.x[0].fill_(0.0)
    if problem.weight_format.scale_dtype == "f8_e8m0":
        scale = math.nan  # it has no infinity
    args.weight_scale[..., 3, 1] = scale
    if isinstance(problem, GroupedMatmulDescriptor):
        args.indptr.copy_(torch.tensor([0, problem.total_num_rows]))
    if impl is None:
        Plan.select(problem, target=Target.cpu()).run(args)
        sku = Plan.select(problem, target=Target.cpu()).sku
    else:
        sku = run(problem, args, impl, None)
    finite = args.out.isfinite()
    assert not bool(finite[:, 3].any())
    assert bool(finite[:, [0, 1, 2, 4, 5, 6, 7]].all())
    before = numerics.snapshot(problem, args)
    assert numerics.check(problem, args, sku, before=before).worst <= 1
    args.out[1, 3] = -args.out[1, 3]
    assert numerics.check(problem, args, sku, before=before).worst <= 1
    args.out[1, 3] = 1.0
    assert numerics.check(problem, args, sku, before=before).worst > 1
