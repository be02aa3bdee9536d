"""Products on a GPU: bounds, and bits that no other row changes."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor, Scaling, Weight
from opfacade.testing import inputs, numerics
from tests.families.matmul import (
    test_coded_kernel,
    test_codes_kernel,
    test_fp8_kernel,
    test_grouped_bytes_kernel,
    test_grouped_kernel,
    test_odd_kernel,
)
from tests.families.matmul.test_matmul_kernel import FORMS, replace_sizes

ALL = FORMS | {f"fp8-{name}": one for name, one in test_fp8_kernel.FORMS.items()}
ALL |= {f"codes-{name}": one for name, one in (test_codes_kernel.FORMS | test_coded_kernel.FORMS).items()}

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
TYPES["codes"] = {"dtype": "bf16", "weight_format": Weight(dtype="uint4", group=128, zero="int", dequantise="rounded")}
TYPES["exact"] = {"dtype": "bf16", "weight_format": Weight(dtype="int4", group=128)}
TYPES["mxfp4"] = {"dtype": "bf16", "weight_format": Weight(dtype="e2m1", group=32, scale_dtype="f8_e8m0")}


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (96, 7168), (1000, 520)])
def test_a_row_has_its_bits_among_any_rows_on_a_gpu(n, k, types):
    """Each number of rows has another tile; rows that are not aligned to 16 bytes are copied by threads."""
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


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_bits_of_rows_are_the_same_from_1_to_8192_rows(dtype, seed):
    """Random n and k, odd ones too, also with segments of k; f32 hides no bit of a sum."""
    rng = random.Random(seed)
    n, k = round(16 * 256 ** rng.random()), round(16 * 512 ** rng.random())
    if seed % 2:
        n, k = 512 if n > 2048 else n, 2048 + k // 8 * 8  # segments
    most = MatmulDescriptor(total_num_rows=8192, n=n, k=k, dtype=dtype, out_dtype=(None, "f32")[seed // 2 % 2])
    args = inputs.make_args(most, seed, "cuda")
    whole = ran(most, args)
    for rows in (1, 2, 7, 8, 9, 33, 64, 65, 129, 300, 1024, 4100):
        first = rng.randrange(8192 - rows)
        part = replace(args, x=args.x[first : first + rows], out=torch.empty_like(whole[:rows]))
        assert torch.equal(ran(replace_sizes(most, total_num_rows=rows), part), whole[first : first + rows])


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(
    ("rows", "n", "k"), [(1, 1000, 4097), (70, 333, 2500), (1030, 2049, 833), (2050, 16, 5447), (3, 5, 6), (300, 13289, 64)]
)
def test_odd_sizes_have_the_bits_of_operands_that_tma_loads_on_a_gpu(rows, n, k, types):
    """Copied by threads or in a first launch, and views with row strides that are multiples of 16 bytes."""
    problem = MatmulDescriptor(total_num_rows=rows, n=n, k=k, **TYPES[types])
    args = inputs.make_args(problem, 7, "cuda")
    plan, before = Plan.select(problem, Preference(backend="cuda")), numerics.snapshot(problem, args)
    plan.run(args)
    assert numerics.check(problem, args, plan.sku, before=before).worst <= 1
    loaded = replace(args, x=test_odd_kernel.padded(args.x), weight=test_odd_kernel.padded(args.weight))
    assert torch.equal(ran(problem, replace(loaded, out=torch.empty_like(args.out))), args.out)


GROUPS = test_grouped_kernel.FORMS | test_grouped_bytes_kernel.FORMS


@pytest.mark.parametrize("name", GROUPS)
def test_groups_keep_their_bound_on_a_gpu(name):
    problem = GROUPS[name]
    args = inputs.make_args(problem, 3, "cuda")
    plan, before = Plan.select(problem, Preference(backend="cuda")), numerics.snapshot(problem, args)
    plan.run(args)
    assert numerics.check(problem, args, plan.sku, before=before).worst <= 1


OF_GROUPS = {
    "bf16": {}, "fp8": {"dtype": "f8_e4m3", "scaling": Scaling(kind="block")},
    "i8": {"dtype": "i8", "scaling": Scaling(kind="token")},
}  # fmt: skip


@pytest.mark.parametrize("types", OF_GROUPS)
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (96, 7168), (1000, 520)])
def test_a_row_has_its_bits_among_any_groups_on_a_gpu(n, k, types):
    """The bits of the product of its group alone."""
    problem = test_grouped_kernel.made(groups=9, rows=700, n=n, k=k, **OF_GROUPS[types])
    args = inputs.make_args(problem, 5, "cuda")
    if types != "i8":
        args.x.copy_(torch.randn(args.x.shape, generator=torch.Generator().manual_seed(5)))
    args = replace(args, indptr=torch.tensor([3, 4, 4, 68, 133, 133, 300, 301, 500, 690], dtype=torch.int32, device="cuda"))
    whole = ran(problem, args)
    for group, (first, stop) in enumerate(pairwise(args.indptr.tolist())):
        one = MatmulDescriptor(total_num_rows=stop - first, n=n, k=k, **({"dtype": "bf16"} | OF_GROUPS[types]))
        scales = {}
        if types != "bf16":
            scales = {"x_scale": args.x_scale[first:stop], "weight_scale": args.weight_scale[group]}
        alone = MatmulArgs(x=args.x[first:stop], weight=args.weight[group], out=torch.empty_like(whole[first:stop]), **scales)
        assert torch.equal(ran(one, alone), whole[first:stop])
