"""Products of codes in registers whose scales multiply the sums of groups, on an emulated device: no number is rounded."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target, errors
from opfacade.backends.cuda.matmul import coded as backend
from opfacade.core.descriptor import forget_specializations
from opfacade.plan import forget_selections
from opfacade.plans.matmul import MatmulDescriptor, Weight
from opfacade.testing import inputs
from tests import emulator
from tests.families.matmul import test_coded_kernel as rounded
from tests.families.matmul.held import held
from tests.families.matmul.test_coded_kernel import AHEAD, E2M1, MXFP4, NVFP4, SHAPES, shaped

SM_90A = Target.parse("sm_90a")


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield
    forget_specializations(), forget_selections()


def made(weight=None, **more):
    """The default dequantise, unless the weight says otherwise."""
    return rounded.made(weight={"dtype": "int4", "group": 128, "dequantise": "exact"} | (weight or {}), **more)


ZEROS = {"dtype": "uint4", "zero": "int"}
FORMS = {
    "int4": made(k=1088, bias=True, activation="silu"),
    "zeros, f32 scales": made(ZEROS | {"group": 32, "scale_dtype": "f32"}, rows=17, k=320, out_dtype="f32"),
    "an offset": made(ZEROS | {"group_offset": 96}, k=320),
    "f16 by scales of bf16": made({"group": 64}, rows=70, k=704, dtype="f16", out_dtype="f32", add=True),
    "f16 by powers of two": made({"dtype": "e2m1", "group": 32, "scale_dtype": "f8_e8m0"}, rows=9, dtype="f16"),
    "e2m1 by f32 and all": made({"dtype": "e2m1", "scale_dtype": "f32", "global_scale": True}, k=192, n=70, num_valid=True),
    "e4m3 scales": made({"group": 64, "scale_dtype": "f8_e4m3", "dequantise": "group_sum"}, rows=140, k=192, batch=2),
    "gated": made(ZEROS | {"group": 64}, n=24, k=128, gated=True, rows=1),
    "edges": made({"group": 32}, rows=9, n=70, k=64, out_dtype="f32"),
}
SUMMED = ("8", "16", "32", "32 shared", "64", "128", "128 shared", "128 of few columns")  # shapes of these products


def checked(problem, args):
    held(problem, args, "wgmma_codes", "matmul-mma16")


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound(name):
    checked(FORMS[name], inputs.make_args(FORMS[name], 3))


def drawn(dtype, group, rows, k, n=72):
    """A product, its arguments, and its codes minus zero points in f64: integers, or numbers of e2m1."""
    zero = "int" if dtype == "uint4" else "none"
    problem = made({"dtype": dtype, "zero": zero, "group": group, "scale_dtype": "f32"}, rows=rows, n=n, k=k, out_dtype="f32")
    args, groups = inputs.make_args(problem, 1), -(-k // group)
    codes = torch.randint(0, 16, (n, k), generator=torch.Generator().manual_seed(1))
    args.weight.copy_(codes[:, ::2] + 16 * codes[:, 1::2])
    if dtype == "uint4":
        zeros = torch.arange(n * groups).reshape(n, groups) % 16
        args.weight_zero.copy_(zeros)
        return problem, args, (codes - zeros.repeat_interleave(group, 1)[:, :k]).double()
    return problem, args, (torch.tensor(E2M1)[codes] if dtype == "e2m1" else torch.where(codes > 7, codes - 16, codes)).double()


@emulator.needed
@pytest.mark.parametrize("dtype", ["int4", "uint4", "e2m1"])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(("shape", "k"), [("8", 320), ("16", 1088), ("32", 1088), ("64", 320), ("128", 704)])
def test_sums_of_groups_are_exact_and_their_scales_multiply_them(dtype, group, shape, k):
    """Integers of x and scales that are powers of two: f32 represents all sums, so the result is the definition by hand. Groups
    end inside panels and stages, and the last group is not whole."""
    rows = SHAPES[shape][0]
    problem, args, numbers = drawn(dtype, group, rows, k)
    x = torch.arange(rows * k).reshape(rows, k) * 5 % 7 - 3
    scale = 2.0 ** (torch.arange(args.weight_scale.numel()).reshape(args.weight_scale.shape) * 3 % 7 - 3)
    args.x.copy_(x), args.weight_scale.copy_(scale), args.out.fill_(torch.nan)
    with shaped(**SHAPES[shape][1]):
        emulator.subject(problem).run(args)
    want = x.double() @ (numbers * scale.double().repeat_interleave(group, 1)[:, :k]).T
    assert torch.equal(args.out.double(), want)


@emulator.needed
@pytest.mark.parametrize("rows", [1, 200])
def test_no_number_is_rounded_to_the_type_of_x(rows):
    """x is a row of a unit matrix, and scales have 24 bits: the result is code times scale, rounded once to f32."""
    problem, args, numbers = drawn("int4", 64, rows, 256)
    scale = torch.rand(args.weight_scale.shape, generator=torch.Generator().manual_seed(2)) + 1
    args.x.copy_(torch.eye(rows, 256)), args.weight_scale.copy_(scale)
    emulator.subject(problem).run(args)
    want = (numbers * scale.double().repeat_interleave(64, 1))[:, :rows].float()
    assert torch.equal(args.out, want.T)
    assert not torch.equal(args.out, args.out.bfloat16().float())


@emulator.needed
@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("rows", [2, 130])
def test_errors_are_below_those_of_steps_and_of_one_addition_per_group(group, rows):
    """By hand in f64: a step of 16 products loses at most 2^-23 of what is added so far in its group, the addition of a group
    and that of a segment half of it."""
    k = 1088
    problem, args, numbers = drawn("uint4", group, rows, k)
    emulator.subject(problem).run(args)
    x, w = args.x.double(), numbers * args.weight_scale.double().repeat_interleave(group, 1)[:, :k]
    segments = backend.segments_of(72, k).many
    bound = 2.0**-23 * (group / 16 + -(-k // group) / 2 + segments / 2 + 1) * (x.abs() @ w.abs().T)
    assert bool(((args.out.double() - x @ w.T).abs() <= bound).all())


@pytest.fixture(scope="module")
def most():
    """A product of five segments, its arguments and its result."""
    problem = made(ZEROS | {"scale_dtype": "f32"}, rows=140, n=200, k=2240, out_dtype="f32")
    assert backend.segments_of(200, 2240).many == 5
    args = inputs.make_args(problem, 5)
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None), shaped(**SHAPES["64"][1]):
        emulator.subject(problem).run(args)
    forget_specializations()
    return problem, args, args.out.clone()


@emulator.needed
@pytest.mark.parametrize("name", SUMMED)
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


@emulator.needed
@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("rows", [1, 20, 70])
def test_tiles_of_few_and_many_rows_have_the_same_bits(group, rows):
    """One segment, several, and a last stage of three panels; groups that end in a panel."""
    for k in (192, 704, 1472):
        problem = made({"group": group}, rows=70, k=k, out_dtype="f32")
        args, found = inputs.make_args(problem, 6), []
        for name in ("128", "8" if rows == 1 else "32" if rows == 20 else "64"):
            call = replace(args, x=args.x[:rows], out=torch.full((rows, 40), torch.nan))
            with shaped(**SHAPES[name][1]):
                checked(problem.model_copy(update={"total_num_rows": rows}).revalidated(), call)
            found.append(call.out)
        assert torch.equal(*found)


@emulator.needed
@pytest.mark.parametrize("aside", [1, 2])
@pytest.mark.parametrize("weight", [{}, ZEROS | {"group": 32}], ids=["int4", "uint4"])
def test_every_tile_of_a_cta_keeps_its_bound(weight, aside):
    """Scales of the next tile are read with this tile; two weights, whose scales differ; totals in shared memory."""
    problem = made(weight, rows=140, n=140, k=832, batch=2, sm_limit=aside, out_dtype="f32")
    with shaped(rows=128, along=1, beside=2, split=1, aside=aside):
        checked(problem, inputs.make_args(problem, 4))


@emulator.needed
@pytest.mark.parametrize("rows", [4, 40, 130])
def test_warps_that_multiply_may_run_before_those_that_load(rows, monkeypatch):
    emulator.last_first(monkeypatch)
    problem = made(rows=rows, n=260, k=1088, sm_limit=2)
    checked(problem, inputs.make_args(problem, 4))


def chosen(problem):
    forget_selections()
    return Plan.select(problem, Preference(backend="cuda"), SM_90A)


def test_the_default_has_this_kernel_for_few_and_for_many_rows():
    for dequantise in ("exact", "group_sum"):
        for rows in (1, 64, 300, 8192):
            plan = chosen(made({"dequantise": dequantise}, rows=rows, n=4096, k=4096))
            assert plan.sku.impl == "wgmma_codes"
            assert dict(plan.sku.precision_guarantee.error_model.constants)["chain"] == 128
    plain = MatmulDescriptor(total_num_rows=5, n=64, k=256, dtype="bf16", weight_format=Weight(dtype="int4", group=128))
    assert chosen(plain).sku.impl == "wgmma_codes"
    assert dict(chosen(made({"group_offset": 96})).sku.precision_guarantee.error_model.constants)["chain"] == 32


def test_few_rows_have_tiles_of_at_most_32():
    """More sums than those of 32 rows do not fit in the registers of four warpgroups."""
    found = {rows: backend.shape_of(backend.Coding(rows, 4096, 4096), 128, 132, True) for rows in (1, 33, 64, 4096)}
    assert {rows: (one.rows, one.along) for rows, one in found.items()} == {1: (8, 4), 33: (32, 4), 64: (32, 4), 4096: (128, 1)}
    assert all(one.shared <= 232448 for one in found.values())
    assert found[4096].parks
    assert found[4096].shared + 4 * 1025 <= 232448  # the same tile with the table of groups


@pytest.mark.parametrize(
    ("weight", "k"),
    [
        ({}, 96),
        ({"group": None, "num_groups": 3}, 192),
        ({"group": None}, 192),
        ({"group": 16}, 192),
        ({"group": 16, "dtype": "e2m1"}, 192),
    ],
)
def test_other_formats_have_kernels_that_sum_k_in_one_chain(weight, k):
    assert chosen(made(weight, k=k)).sku.impl in ("wgmma_tile", "wgmma_decoded_chain")


@pytest.mark.parametrize("weight", [MXFP4, NVFP4])
def test_numbers_that_the_type_of_x_represents_are_multiplied_themselves(weight):
    plan = chosen(made(weight | {"zero": "none"}, k=192))
    assert plan.sku.impl == "wgmma_codes"
    assert "chain" not in dict(plan.sku.precision_guarantee.error_model.constants)


def test_zero_points_that_are_floats_are_declined_with_the_cure():
    with pytest.raises(errors.UnsupportedError, match="rounded"):
        Plan.select(made({"zero": "added"}), Preference(backend="cuda"), SM_90A)


@AHEAD
@pytest.mark.parametrize("rows", [1, 64, 128, 4096])
@pytest.mark.parametrize("weight", [{}, ZEROS | {"group": 32, "scale_dtype": "f32"}], ids=["int4", "uint4"])
def test_the_largest_tiles_compile(weight, rows):
    plan = Plan.select(made(weight, rows=rows, n=8192, k=8192), Preference(backend="cuda"), SM_90A)
    plan.compile()
    assert plan.cache_state == "shared"
