"""Products of codes that are first decoded to a workspace, on an emulated device, and when they are selected."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.matmul import decoded as matmul_decoded
from opfacade.plan import forget_selections
from opfacade.plans.matmul import MatmulDescriptor, Weight
from opfacade.testing import inputs
from tests import emulator
from tests.families.matmul.held import held
from tests.families.matmul.test_ahead_kernel import FORMATS, of_format
from tests.families.matmul.test_coded_kernel import E2M1, MXFP4, NVFP4, checked, made

SM_90A = Target.parse("sm_90a")


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield
    forget_selections()


def paid(whether):
    forget_selections()
    return patch.object(matmul_decoded, "pays", lambda sizes, sms: whether)


def decoded(problem, args):
    with paid(True):
        held(problem, args, "wgmma_decoded")


FORMS = {
    "zeros": made(rows=130, k=1088, weight={"zero": "int", "group": 128}, bias=True, activation="silu"),
    "an offset": made(rows=70, k=320, weight={"zero": "int", "group": 128, "group_offset": 96}),
    "f16": made(rows=70, weight={"scale_dtype": "f16", "zero": "float"}, dtype="f16", out_dtype="f32", add=True),
    "added": made(weight={"zero": "added", "group": None, "scale_dtype": "f32"}, num_valid=True),
    "gated": made(rows=70, n=24, k=128, gated=True, weight={"dtype": "int4"}, batch=2),
    "mxfp4": made(rows=9, k=320, weight=MXFP4, bias=True),
    "nvfp4": made(rows=70, k=576, weight=NVFP4, out_dtype="f32", gated=True, activation="silu"),
}


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound(name):
    decoded(FORMS[name], inputs.make_args(FORMS[name], 3))


@emulator.needed
@pytest.mark.parametrize("name", FORMATS)
def test_many_rows_have_the_bits_of_few(name):
    """Equal to codes that are decoded to registers, with segments of k; also if codes or rows are not aligned
    to sixteen bytes.
    """
    problem = of_format(name, rows=140, n=140, k=1216, batch=2, sm_limit=2)
    args = inputs.make_args(problem, 4)
    with paid(False):
        checked(problem, args)
    off = torch.empty(2, 140, 613, dtype=torch.uint8)[:, :, 3:611].copy_(args.weight)
    rows_off = torch.empty(2, 140, 1221, dtype=args.x.dtype)[:, :, 2:1218].copy_(args.x)
    for other in ({}, {"weight": off, "x": rows_off}):
        call = replace(args, **other, out=torch.full_like(args.out, torch.nan))
        decoded(problem, call)
        assert torch.equal(call.out, args.out)


@emulator.needed
@pytest.mark.parametrize("tile", [matmul_decoded._PAIR, matmul_decoded._WIDE], ids=["pair", "wide"])
@pytest.mark.parametrize("name", ["uint4", "mxfp4"])
def test_other_tiles_have_the_bits_of_few(tile, name):
    problem = of_format(name, rows=140, n=328, k=1216, sm_limit=2)
    args = inputs.make_args(problem, 4)
    with paid(False):
        checked(problem, args)
    call = replace(args, out=torch.full_like(args.out, torch.nan))
    with patch.object(matmul_decoded, "tile_of", lambda *sizes: tile):
        decoded(problem, call)
    assert torch.equal(call.out, args.out)


@emulator.needed
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_columns_are_the_numbers_that_codes_stand_for(dtype, group):
    """x is a unit matrix, so that each weight appears alone in the result: (code - zero) * scale of small integers is exact. A
    column has more codes than a warp processes at a time."""
    k, n, signed = 1088, 40, dtype == "int4"
    problem = made(rows=k, n=n, k=k, weight={"dtype": dtype, "zero": "none" if signed else "int", "group": group})
    args, groups = inputs.make_args(problem, 1), -(-k // group)
    codes = torch.randint(0, 16, (n, k), generator=torch.Generator().manual_seed(1))
    scale = torch.arange(n * groups).reshape(n, groups) % 7 + 1
    zero = torch.zeros(n, groups) if signed else torch.arange(n * groups).reshape(n, groups) % 16
    args.x.copy_(torch.eye(k)), args.weight.copy_(codes[:, ::2] + 16 * codes[:, 1::2]), args.weight_scale.copy_(scale)
    if not signed:
        args.weight_zero.copy_(zero)
    with paid(True):
        emulator.subject(problem).run(args)
    numbers = torch.where(codes > 7, codes - 16, codes) if signed else codes
    want = (numbers - zero.repeat_interleave(group, 1)[:, :k]) * scale.repeat_interleave(group, 1)[:, :k]
    assert torch.equal(args.out.double(), want.double().T)


@emulator.needed
def test_numbers_of_e2m1_are_codes_times_scales():
    n, k = 24, 320
    problem = made(rows=k, n=n, k=k, weight=NVFP4 | {"global_scale": False}, out_dtype="f32")
    args = inputs.make_args(problem, 1)
    codes = torch.arange(n * k).reshape(n, k) * 7 % 16
    scales = (torch.arange(n * (k // 16)) % 126 + 1).to(torch.uint8).view(torch.float8_e4m3fn).reshape(n, -1)
    args.x.copy_(torch.eye(k)), args.weight.copy_(codes[:, ::2] + 16 * codes[:, 1::2]), args.weight_scale.copy_(scales)
    with paid(True):
        emulator.subject(problem).run(args)
    assert torch.equal(args.out.double(), (torch.tensor(E2M1).double()[codes] * scales.double().repeat_interleave(16, 1)).T)


def of(rows, n=4096, k=4096, **more):
    weight = Weight(dtype="uint4", group=128, zero="int", dequantise="rounded")
    return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype="bf16", weight_format=weight, **more)


def chosen(problem, **prefer):
    forget_selections()
    return Plan.select(problem, Preference(backend="cuda", **prefer), SM_90A)


def test_many_rows_decode_first():
    found = {rows: chosen(of(rows)).sku.impl for rows in (16, 128, 256, 1024, 8192)}
    assert found == dict.fromkeys((16, 128, 256), "wgmma_codes") | dict.fromkeys((1024, 8192), "wgmma_decoded")


def test_tiles_of_many_rows_share_a_weight_and_one_wave_has_wide_tiles():
    tiles = {(rows, n): dict(chosen(of(rows, n=n, k=2880)).sku.spec) for rows, n in ((4096, 5120), (512, 5120), (1024, 5120))}
    found = {sizes: (spec["tile_columns"], spec.get("cluster", 1)) for sizes, spec in tiles.items()}
    assert found == {(4096, 5120): (128, 2), (512, 5120): (192, 1), (1024, 5120): (128, 1)}


def test_the_workspace_is_the_decoded_weight():
    assert chosen(of(4096)).workspace_size == 4096 * 4096 * 2
    assert chosen(of(4096, n=1000, k=2880, gated=True, batch=3)).workspace_size == 3 * 2000 * 2880 * 2


def test_a_smaller_workspace_selects_the_kernel_without_one():
    plan = chosen(of(4096), max_workspace_bytes=4096 * 4096)
    assert plan.sku.impl == "wgmma_codes"


def test_rows_of_both_kernels_have_the_same_promise():
    """Segments of k are those of the kernel for few rows."""
    few, many = chosen(of(16)), chosen(of(4096), require="batch_invariant")
    assert many.sku.impl == "wgmma_decoded"
    assert few.precision_guarantee.error_model == many.precision_guarantee.error_model
