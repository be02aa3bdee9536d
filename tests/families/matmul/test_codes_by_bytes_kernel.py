"""Products of e4m3 rows by codes of four bits, on an emulated device: numbers, scales of groups, segments and edges."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target, errors, explain
from opfacade.core.descriptor import forget_specializations
from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor, Scaling, Weight
from opfacade.testing import inputs
from tests import emulator
from tests.families.matmul.held import held
from tests.families.matmul.test_coded_kernel import E2M1, SHAPES, shaped
from tests.support.assemblers import any_assembler

SM_90A, TOKEN, TENSOR = Target.parse("sm_90a"), Scaling(kind="token"), Scaling(kind="tensor")
MXFP4 = {"dtype": "e2m1", "group": 32, "scale_dtype": "f8_e8m0"}


@pytest.fixture(autouse=True)
def _any_assembler():
    with any_assembler():
        yield


def made(rows=5, n=40, k=256, weight=None, scaling=TOKEN, **more):
    given = {"dtype": "int4", "group": 128, "scale_dtype": "bf16", "dequantise": "group_sum"} | (weight or {})
    fields = {"total_num_rows": rows, "n": n, "k": k, "dtype": "f8_e4m3", "scaling": scaling}
    return MatmulDescriptor(**(fields | {"weight_format": Weight(**given)} | more))


FORMS = {
    "int4 of 128": made(k=1152, bias=True, activation="silu"),
    "scales of e4m3": made(rows=17, k=640, weight={"scale_dtype": "f8_e4m3"}, scaling=TENSOR),
    "mxfp4": made(rows=9, k=640, weight=MXFP4, add=True, out_dtype="f32"),
    "mxfp4 of many rows": made(rows=70, n=70, k=1408, weight=MXFP4),
    "groups of 64, gated": made(n=24, weight={"group": 64}, gated=True, activation="silu", batch=2),
    "an offset": made(k=384, weight={"group_offset": 96}),
    "one scale": made(rows=1, n=33, k=640, weight={"group": None, "scale_dtype": "f32"}, scaling=None, num_valid=False),
    "a last group that is not whole": made(k=128, n=70, weight={"group": 128, "group_offset": 64}, num_valid=True),
    "a global scale": made(k=384, weight={"dtype": "e2m1", "group": 32, "scale_dtype": "f8_e4m3", "global_scale": True}),
}


def checked(problem, args):
    held(problem, args, "wgmma_codes", "matmul-mma8")


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound(name):
    checked(FORMS[name], inputs.make_args(FORMS[name], 3))


@emulator.needed
@pytest.mark.parametrize("dtype", ["int4", "e2m1"])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_columns_are_the_numbers_that_codes_stand_for(dtype, group):
    """x is a unit matrix, so that each weight appears alone in the result; scales are powers of two, and row r has the scale 1
    + r % 3.
    """
    k, n = 384, 72
    problem = made(rows=k, n=n, k=k, weight={"dtype": dtype, "group": group}, out_dtype="f32")
    args, groups = inputs.make_args(problem, 1), k // group
    codes = torch.randint(0, 16, (n, k), generator=torch.Generator().manual_seed(1))
    numbers = torch.tensor(E2M1)[codes] if dtype == "e2m1" else torch.where(codes > 7, codes - 16, codes)
    scale = 2.0 ** (torch.arange(n * groups).reshape(n, groups) % 7 - 3)
    of_rows = 1.0 + torch.arange(k) % 3
    args.x.copy_(torch.eye(k)), args.weight.copy_(codes[:, ::2] + 16 * codes[:, 1::2])
    args.weight_scale.copy_(scale), args.x_scale.copy_(of_rows)
    emulator.subject(problem).run(args)
    want = numbers * scale.repeat_interleave(group, 1)
    assert torch.equal(args.out.double(), want.double().T * of_rows[:, None].double())


@pytest.fixture(scope="module")
def most():
    """A product of five segments, its arguments and its result."""
    problem = made(rows=140, n=200, k=2304, weight=MXFP4, out_dtype="f32")
    args = inputs.make_args(problem, 5)
    with any_assembler(), shaped(**SHAPES["64"][1]):
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
    off = torch.empty(200, 1162, dtype=torch.uint8)[:, 3:1155].copy_(args.weight)
    rows_off = torch.empty(rows, 2309, dtype=args.x.dtype)[:, 2:2306].copy_(args.x[:rows])
    for other in ({}, {"weight": off, "x": rows_off}):
        with shaped(**shape):
            out = torch.full((rows, 200), float("nan"))
            call = replace(args, **({"x": args.x[:rows], "x_scale": args.x_scale[:rows]} | other), out=out)
            checked(part, call)
        assert torch.equal(call.out, expected[:rows])
    forget_specializations()


@emulator.needed
def test_nan_stays_in_its_row_and_an_infinite_scale_in_its_column():
    problem = made(rows=4, n=33, k=256, out_dtype="f32")
    args = inputs.make_args(problem, 2)
    args.x[1, 7] = float("nan")
    args.weight.fill_(0x11), args.weight_scale.fill_(1), args.x[0].fill_(1)
    args.weight_scale[3, 1] = float("inf")
    emulator.subject(problem).run(args)
    assert bool(args.out[1].isnan().all())
    assert torch.equal(args.out[0].isfinite(), torch.arange(33) != 3)


@emulator.needed
@pytest.mark.parametrize("rows", [4, 130])
def test_warps_that_multiply_may_run_before_those_that_load(rows, monkeypatch):
    emulator.last_first(monkeypatch)
    problem = made(rows=rows, n=260, k=1152, sm_limit=2)
    checked(problem, inputs.make_args(problem, 4))


def test_the_reference_is_the_definition():
    """By hand: x_scale * sum of x * code * scale of its group, in f64, rounded once."""
    problem = made(rows=6, n=10, k=256, weight={"scale_dtype": "f8_e4m3"}, out_dtype="f32")
    args = inputs.make_args(problem, 3)
    Plan.select(problem, Preference(backend="reference"), Target.cpu()).run(args)
    for row, column in ((0, 0), (5, 9), (3, 4)):
        total = 0.0
        for j in range(256):
            byte = int(args.weight[column, j // 2])
            code = byte >> 4 if j % 2 else byte & 15
            code -= 16 * (code > 7)
            total += float(args.x[row, j]) * code * float(args.weight_scale[column, j // 128])
        want = total * float(args.x_scale[row])
        assert abs(float(args.out[row, column]) - want) <= 2.0**-23 * abs(want) + 1e-9


REFUSED = {
    "numbers in e4m3": (lambda: made(weight={"dequantise": "rounded"}), "weight_format.dequantise", "group_sum or exact"),
    "blocks of x": (lambda: made(scaling=Scaling(kind="block")), "scaling.kind", "tensor or token"),
    "scales of the weight twice": (
        lambda: made(scaling=Scaling(kind="tensor", weight_kind="token")), "scaling.weight_kind", "has its own scales"
    ),
    "ranges": (lambda: made(scaling=Scaling(kind="tensor", weight_starts=(8,))), "scaling.weight_starts", "has its own scales"),
    "e5m2": (lambda: made(dtype="f8_e5m2"), "dtype", "f8_e4m3 with weight_format"),
    "scales of bf16 rows": (lambda: made(dtype="bf16"), "scaling", "null for bf16"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_fields_that_contradict_each_other_are_refused(case):
    make, field, words = REFUSED[case]
    with pytest.raises(errors.DescriptorError) as raised:
        make()
    assert field in str(raised.value)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("problem", "field"),
    [
        (made(weight={"dequantise": "exact"}), "weight_format.dequantise"),
        (made(weight={"dtype": "uint4", "zero": "int"}), "weight_format.dtype"),
        (made(weight={"dtype": "e2m1", "group": 16, "scale_dtype": "f8_e4m3"}), "weight_format.group"),
        (made(weight={"group_offset": 8}), "weight_format.group_offset % 32"),
        (made(k=192), "k % 128"),
        (made(x_layout="km"), "x_layout"),
    ],
)
def test_what_the_kernel_does_not_take_says_why(problem, field):
    found = explain(problem, Preference(backend="cuda"), SM_90A)
    assert found.chosen is None
    assert any(field in str(reason) for option in found.options for reason in option.reasons)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 64, 128, 400])
@pytest.mark.parametrize("weight", [{}, {"scale_dtype": "f8_e4m3"}, MXFP4], ids=["bf16", "e4m3", "mxfp4"])
def test_it_keeps_its_bound_on_a_gpu(rows, weight):
    from opfacade.testing import numerics

    problem = made(rows=rows, n=1024, k=2048, weight=weight, bias=True)
    args = MatmulArgs(**{
        name: None if value is None else value.cuda()
        for name, value in ((name, getattr(inputs.make_args(problem, 3), name, None)) for name in MatmulArgs.__slots__)
    })  # fmt: skip
    plan = Plan.select(problem, Preference(backend="cuda"))
    before = numerics.snapshot(problem, args)
    plan.run(args)
    report = numerics.check(problem, args, plan.sku, before=before)
    assert report.worst <= 1, report
    first = args.out.clone()
    plan.run(args)
    assert torch.equal(first, args.out)
    one = replace(args, x=args.x[:1], x_scale=args.x_scale[:1], out=torch.empty_like(args.out[:1]))
    Plan.select(made(rows=1, n=1024, k=2048, weight=weight, bias=True), Preference(backend="cuda")).run(one)
    assert torch.equal(one.out, first[:1])
