"""The kernel that decodes codes of four bits to registers, on an emulated device: numbers, groups, segments and edges."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda import ptxas
from opfacade.backends.cuda.matmul import coded as backend
from opfacade.core.descriptor import forget_specializations
from opfacade.plans.matmul import MatmulDescriptor, Weight
from opfacade.testing import inputs
from tests import emulator
from tests.families.matmul.held import held

SM_90A = Target.parse("sm_90a")
# An older ptxas builds no kernel that decodes while products run; selection declines there.
AHEAD = pytest.mark.skipif((ptxas.release() or (0, 0)) < ptxas.SOUND_WGMMA, reason="need ptxas 13.3")


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


def made(rows=5, n=40, k=192, weight=None, dtype="bf16", **more):
    given = {"dtype": "uint4", "group": 64, "scale_dtype": "bf16", "dequantise": "rounded"} | (weight or {})
    return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype=dtype, weight_format=Weight(**given), **more)


HALF = {"scale_dtype": "f16"}
MXFP4 = {"dtype": "e2m1", "group": 32, "scale_dtype": "f8_e8m0", "dequantise": "exact"}
NVFP4 = {"dtype": "e2m1", "group": 16, "scale_dtype": "f8_e4m3", "dequantise": "exact", "global_scale": True}
FORMS = {
    "zeros": made(k=1088, weight={"zero": "int", "group": 128}, bias=True, activation="silu"),
    "an offset": made(k=320, weight={"zero": "int", "group": 128, "group_offset": 96}),
    "f16": made(rows=70, weight=HALF | {"zero": "float"}, dtype="f16", out_dtype="f32", add=True),
    "f16 packed": made(rows=17, k=320, weight=HALF | {"zero": "int", "group": 32}, dtype="f16"),
    "added": made(weight={"zero": "added", "group": None, "scale_dtype": "f32"}, num_valid=True),
    "edges": made(rows=9, n=70, k=64, weight={"zero": "int", "group": 32}, out_dtype="f32"),
    "gated": made(n=24, k=128, gated=True, weight={"dtype": "int4"}, batch=2),
    "mxfp4": made(rows=9, k=320, weight=MXFP4, bias=True),
    "mxfp4 of many rows": made(rows=70, n=70, k=704, weight=MXFP4 | {"dequantise": "rounded"}),
    "nvfp4": made(k=576, weight=NVFP4, out_dtype="f32", gated=True, activation="silu"),
    "nvfp4 in f16": made(rows=20, k=320, weight=NVFP4, dtype="f16", batch=2),
    "e2m1 rounded": made(k=128, weight={"dtype": "e2m1", "group": 64}),
    "one code": made(rows=1, n=33, k=640, weight={"dtype": "int4", "group": None}),
}


def shaped(**more):
    """All products use this tile shape."""
    forget_specializations()
    plain = backend.shape_of
    return patch.object(backend, "shape_of", lambda *given: plain(*given)._replace(**more))


def checked(problem, args):
    held(problem, args, "wgmma_codes")


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound(name):
    checked(FORMS[name], inputs.make_args(FORMS[name], 3))


@emulator.needed
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_columns_are_the_numbers_that_codes_stand_for(dtype, group):
    """x is a unit matrix, so that each weight appears alone in the result: (code - zero) * scale of small integers is exact."""
    k, n = 320, 72
    problem = made(rows=k, n=n, k=k, weight={"dtype": dtype, "zero": "none" if dtype == "int4" else "int", "group": group})
    args, groups = inputs.make_args(problem, 1), -(-k // group)
    codes = torch.randint(0, 16, (n, k), generator=torch.Generator().manual_seed(1))
    numbers = torch.where(codes > 7, codes - 16, codes) if dtype == "int4" else codes
    scale = torch.arange(n * groups).reshape(n, groups) % 7 + 1
    args.x.copy_(torch.eye(k)), args.weight.copy_(codes[:, ::2] + 16 * codes[:, 1::2]), args.weight_scale.copy_(scale)
    zero = torch.zeros(n, groups)
    if dtype == "uint4":
        zero = torch.arange(n * groups).reshape(n, groups) % 16
        args.weight_zero.copy_(zero)
    emulator.subject(problem).run(args)
    want = (numbers - zero.repeat_interleave(group, 1)[:, :k]) * scale.repeat_interleave(group, 1)[:, :k]
    assert torch.equal(args.out.double(), want.double().T)


SHAPES = {
    "128": (140, {"rows": 128, "along": 1, "beside": 2, "split": 1, "aside": 1}),
    "128 shared": (140, {"rows": 128, "along": 1, "beside": 2, "split": 1, "aside": 2}),
    "128 of few columns": (140, {"rows": 128, "along": 1, "beside": 1, "split": 1, "aside": 1}),
    "64": (140, {"rows": 64, "along": 1, "beside": 2, "split": 1, "aside": 1}),
    "64 along, shared": (70, {"rows": 64, "along": 4, "beside": 1, "split": 2, "aside": 2}),
    "64 along": (140, {"rows": 64, "along": 4, "beside": 1, "split": 2, "aside": 1}),
    "32": (40, {"rows": 32, "along": 4, "beside": 1, "split": 4, "aside": 1}),
    "32 shared": (40, {"rows": 32, "along": 4, "beside": 1, "split": 2, "aside": 2}),
    "16": (9, {"rows": 16, "along": 4, "beside": 1, "split": 2, "aside": 1}),
    "8": (1, {"rows": 8, "along": 4, "beside": 1, "split": 2, "aside": 1}),
}


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


@emulator.needed
@pytest.mark.parametrize(
    ("group", "scale", "dtype"), [(32, "f8_e8m0", "bf16"), (16, "f8_e4m3", "bf16"), (16, "f8_e4m3", "f16")]
)
def test_numbers_of_e2m1_are_codes_times_scales(group, scale, dtype):
    """Each code, powers of two from 2^-127 to 2^120, and scales of every exponent of e4m3, including the smallest subnormal."""
    n, k = 72, 320
    weight = {"dtype": "e2m1", "group": group, "scale_dtype": scale, "dequantise": "exact"}
    problem = made(rows=k, n=n, k=k, weight=weight, dtype=dtype, out_dtype="f32")
    args = inputs.make_args(problem, 1)
    codes = torch.arange(n * k).reshape(n, k) * 7 % 16
    every = torch.arange(n * (k // group))
    raw = (every % 248 if group == 32 else every % 126 + 1).to(torch.uint8)
    scales = raw.view(torch.float8_e8m0fnu if group == 32 else torch.float8_e4m3fn).reshape(n, -1)
    args.x.copy_(torch.eye(k)), args.weight.copy_(codes[:, ::2] + 16 * codes[:, 1::2]), args.weight_scale.copy_(scales)
    plan = emulator.subject(problem)
    plan.run(args)
    want = torch.tensor(E2M1).double()[codes] * scales.double().repeat_interleave(group, 1)
    assert bool(scales.double().isfinite().all())
    assert torch.equal(args.out.double(), want.T)


@pytest.fixture(scope="module")
def most():
    """A product of five segments, its arguments and its result."""
    problem = made(rows=140, n=200, k=2240, weight={"zero": "int"}, out_dtype="f32")
    assert backend.segments_of(200, 2240).many == 5
    args = inputs.make_args(problem, 5)
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None), shaped(**SHAPES["64"][1]):
        emulator.subject(problem).run(args)
    forget_specializations()
    return problem, args, args.out.clone()


@emulator.needed
@pytest.mark.parametrize("name", SHAPES)
def test_a_row_has_its_bits_in_any_batch(name, most):
    """Alone, among others, in each tile, and if codes or rows are not aligned to sixteen bytes."""
    problem, args, expected = most
    rows, shape = SHAPES[name]
    part = problem.model_copy(update={"total_num_rows": rows}).revalidated()
    off = torch.empty(200, 1130, dtype=torch.uint8)[:, 3:1123].copy_(args.weight)
    rows_off = torch.empty(rows, 2245, dtype=args.x.dtype)[:, 2:2242].copy_(args.x[:rows])
    for other in ({}, {"weight": off, "x": rows_off}):
        with shaped(**shape):
            call = replace(args, **({"x": args.x[:rows]} | other), out=torch.full((rows, 200), float("nan")))
            checked(part, call)
        assert torch.equal(call.out, expected[:rows])
    forget_specializations()


@emulator.needed
def test_a_scale_past_the_end_of_n_or_k_makes_no_number():
    problem = made(rows=2, n=33, k=64, weight={"group": 128}, out_dtype="f32")
    args = inputs.make_args(problem, 2)
    args.weight_scale[3, 0] = float("inf")
    args.x.fill_(1), args.weight.fill_(0x11)
    emulator.subject(problem).run(args)
    assert torch.equal(args.out.isfinite().all(0), torch.arange(33) != 3)
    assert bool((args.out[:, 3] == float("inf")).all())


@emulator.needed
@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        (20, {"rows": 8, "split": 1}),
        (130, {"rows": 64, "along": 1, "beside": 2, "split": 1, "aside": 1}),
        (130, {"rows": 128, "along": 1, "beside": 2, "split": 1, "aside": 2}),
        (130, {"rows": 128, "along": 1, "beside": 1, "split": 1, "aside": 1}),
        (70, {"rows": 32, "along": 4, "beside": 1, "split": 1, "aside": 2}),
    ],
)
def test_a_cta_has_many_tiles(rows, shape):
    """One SM, or two: rings wrap around over tiles, with three panels more than a stage each."""
    problem = made(rows=rows, n=300, k=448, sm_limit=shape.get("aside", 1), weight={"group": 32})
    with shaped(**shape):
        checked(problem, inputs.make_args(problem, 4))
    forget_specializations()


@emulator.needed
@pytest.mark.parametrize("rows", [4, 40, 130])
def test_warps_that_multiply_may_run_before_those_that_load(rows, monkeypatch):
    emulator.last_first(monkeypatch)
    problem = made(rows=rows, n=260, k=1088, sm_limit=2, weight={"zero": "int", "group": 128})
    checked(problem, inputs.make_args(problem, 4))


@emulator.needed
def test_without_valid_rows_nothing_is_written():
    problem = made(rows=9, n=40, k=2048, num_valid=True)
    args = inputs.make_args(problem, 4)
    args.num_valid.fill_(0), args.out.fill_(7)
    with shaped(split=2):
        emulator.subject(problem).run(args)
    forget_specializations()
    assert bool((args.out == 7).all())


def test_the_shape_follows_from_the_sizes():
    """Warpgroups along k for few rows; if one CTA has all segments, warpgroups share them. One warpgroup of columns if wider
    tiles leave SMs without a tile."""
    sizes = (
        (1, 64),
        (1, 8192),
        (64, 8192),
        (128, 64),
        (128, 8192),
        (128, 28672),
        (256, 4096),
        (512, 4096),
        (4096, 64),
        (4096, 8192),
    )
    found = {(rows, n): backend.shape_of(backend.Coding(rows, n, 8192), 128, 132) for rows, n in sizes}
    assert {sizes: (one.rows, one.along, one.beside, one.split, one.aside) for sizes, one in found.items()} == {
        (1, 64): (8, 4, 1, 8, 1),
        (1, 8192): (8, 4, 1, 1, 1),
        (64, 8192): (64, 4, 1, 1, 2),
        (128, 64): (64, 4, 1, 8, 1),
        (128, 8192): (128, 1, 1, 1, 1),
        (128, 28672): (128, 1, 2, 1, 1),
        (256, 4096): (128, 1, 1, 1, 1),
        (512, 4096): (128, 1, 2, 1, 1),
        (4096, 64): (64, 4, 1, 8, 1),
        (4096, 8192): (128, 1, 2, 1, 1),
    }
    assert all(one.shared <= 232448 for one in found.values())
    assert backend.shape_of(backend.Coding(40, 8192, 8192), 128, 1).aside == 1
    assert backend.shape_of(backend.Coding(1, 1024, 8192), 128, 20).split == 1  # sm_limit also applies to clusters


def test_segments_follow_from_n_and_k():
    found = {(n, k): backend.segments_of(n, k) for n, k in ((4096, 4096), (8192, 8192), (4096, 14336), (64, 256), (2112, 7168))}
    lengths = {sizes: None if one is None else tuple(one) for sizes, one in found.items()}
    assert lengths == {
        (4096, 4096): (8, 512),
        (8192, 8192): (4, 2048),
        (4096, 14336): (8, 1792),
        (64, 256): None,
        (2112, 7168): (7, 1024),
    }


@pytest.mark.parametrize(
    "weight",
    [
        {"dequantise": "exact", "group": 16},
        {"scale_dtype": "f8_e4m3"},
        {"dtype": "e2m1", "dequantise": "exact", "group": None},
        {"dtype": "e2m1", "scale_dtype": "f32"},
        {"dtype": "e2m1", "group": None, "scale_dtype": "f8_e8m0", "dequantise": "exact"},
        NVFP4 | {"dequantise": "rounded"},
        {"dtype": "f8_e4m3", "scale_dtype": "bf16"},
    ],
)
def test_other_codes_go_to_the_kernel_of_tiles(weight):
    plan = Plan.select(made(weight=weight), Preference(backend="cuda"), SM_90A)
    assert plan.sku.impl == "wgmma_tile"


@pytest.mark.parametrize("k", [0, 96])
def test_other_sizes_of_k_go_to_the_kernel_of_tiles(k):
    plan = Plan.select(made(k=k, weight={"group": None}), Preference(backend="cuda"), SM_90A)
    assert plan.sku.impl == "wgmma_tile"


@pytest.mark.parametrize("rows", [*(pytest.param(rows, marks=AHEAD) for rows in (1, 32, 64)), 4096])
def test_the_largest_tiles_compile(rows):
    plan = Plan.select(made(rows=rows, n=8192, k=8192, weight={"zero": "int"}), Preference(backend="cuda"), SM_90A)
    plan.compile()
    assert plan.cache_state == "shared"
