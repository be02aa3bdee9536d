"""Quantisation is exact to the bit: division, round to nearest even, saturation and layouts of scales. Also refusals."""

import math

import numpy as np
import pytest
import torch

from opfacade import Plan, Preference, Target, load_descriptor
from opfacade.core.dtypes import torch_dtype
from opfacade.errors import ArgumentError, DescriptorError
from opfacade.plans import quantize as q
from opfacade.plans.quantize import (
    EXAMPLES,
    DequantizeArgs,
    DequantizeDescriptor,
    DequantizePlan,
    Quant,
    QuantizeArgs,
    QuantizeDescriptor,
    QuantizePlan,
)
from opfacade.testing import inputs, numerics
from tests.support import naive_program

LARGEST = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0, "i8": 127.0}


def made(rows=5, hidden=256, wide="bf16", num_valid=False, **fields):
    return QuantizeDescriptor(total_num_rows=rows, hidden=hidden, dtype=wide, quant=Quant(**fields), num_valid=num_valid)


FORMS = {  # test_zero_points.py tests zero points
    **{f"example-{i}": one for i, one in enumerate(EXAMPLES) if not one.quant.zero},
    "column": made(scale_layout="column"),
    "column_padded4": made(rows=6, scale_layout="column_padded4", group=64),
    "token_f8": made(scale="token"),
    "most_group": made(most=1.1),
    "most_token_i8": made(scale="token", dtype="i8", most=0.3, hidden=200),
    "most_tensor": made(scale="tensor", most=0.7, hidden=24),
    "most_powers": made(scale_dtype="f8_e8m0", most=0.9, wide="f32"),
    "none_i8": QuantizeDescriptor(total_num_rows=3, hidden=40, dtype="f32", quant=Quant(dtype="i8", scale="none")),
    "odd": QuantizeDescriptor(total_num_rows=3, hidden=21, dtype="f16", quant=Quant(group=7)),
    "back_column": DequantizeDescriptor(total_num_rows=5, hidden=256, dtype="bf16", quant=Quant(scale_layout="column_padded4")),
    "back_none": DequantizeDescriptor(total_num_rows=5, hidden=24, dtype="bf16", quant=Quant(dtype="f8_e5m2", scale="none")),
    "empty": made(rows=0),
    "powers": made(scale_dtype="f8_e8m0", wide="f32"),
    "powers_i8": made(scale_dtype="f8_e8m0", dtype="i8", group=32),
    "powers_column": made(rows=6, scale_dtype="f8_e8m0", scale_layout="column_padded4", group=64),
    "powers_token": made(scale_dtype="f8_e8m0", scale="token", hidden=200),
    "powers_static": made(scale_dtype="f8_e8m0", scale="static"),
    "powers_tensor": made(scale_dtype="f8_e8m0", scale="tensor", hidden=24),
    "back_powers": DequantizeDescriptor(
        total_num_rows=5, hidden=256, dtype="bf16", quant=Quant(scale_dtype="f8_e8m0", scale_layout="column")
    ),
}


@pytest.fixture(params=FORMS)
def problem(request):
    return FORMS[request.param]


def test_each_form_is_exact_and_survives_serialisation(problem):
    plan = Plan.select(problem)
    assert plan.sku.precision_guarantee.error_model.id == "exact"
    for seed in range(2):
        args = inputs.make_args(problem, seed=seed)
        before = numerics.snapshot(problem, args)
        plan.run(args)
        assert numerics.check(problem, args, plan.sku, before=before).worst <= 0
    assert load_descriptor(problem.canonical_json()) == problem


def scale_of(row, quant):
    most = np.float32(max((abs(np.float32(x)) for x in row), default=0.0))
    most = most if quant.most is None or np.isnan(most) else min(most, np.float32(quant.most))
    found = np.float32(max(most, np.float32(quant.least)) / np.float32(LARGEST[quant.dtype]))
    return found if quant.scale_dtype == "f32" else power_above(found)


def power_above(found):
    """The smallest power of two that is at least `found`, by comparison with every power."""
    return np.float32(next((2.0**k for k in range(-127, 128) if 2.0**k >= float(found)), 2.0**127))


def stored(x, scale, quant):
    """One quantised element, from numpy's correctly rounded division."""
    with np.errstate(all="ignore"):
        found = float(np.float32(x) / np.float32(scale))
    if quant.dtype != "i8":
        return naive_program.narrowed(found, quant.dtype)
    return 0.0 if math.isnan(found) else max(-128.0, min(127.0, float(np.rint(found))))


# test_blocks.py tests block scales.
@pytest.mark.parametrize(
    "name",
    [name for name, one in FORMS.items() if one.op == "quantize" and one.total_num_rows and one.quant.scale != "block"],
)
def test_every_element_is_the_nearest_number(name):
    d = FORMS[name]
    quant, args = d.quant, inputs.make_args(d, seed=7)
    args.x[0, :3] = torch.tensor([0.0, -0.0, 3.0e-30]).to(args.x.dtype)
    Plan.select(d).run(args)
    rows = d.total_num_rows if args.num_valid is None else int(args.num_valid[0])
    x = args.x.float().numpy()
    whole = scale_of(x.ravel(), quant) if quant.scale == "tensor" else None
    width = quant.group if quant.scale == "group" else d.hidden
    for row in range(min(rows, 2)):
        for part in range(d.hidden // width):
            cells = slice(part * width, (part + 1) * width)
            given = float(args.scale[0]) if quant.scale == "static" else 1.0 if quant.scale == "none" else whole
            scale = scale_of(x[row, cells], quant) if given is None else given
            if quant.dynamic:
                told = args.scale if quant.scale_layout == "row" else args.scale.t()
                told = (
                    told.reshape(-1)[0] if quant.scale == "tensor" else told[row] if quant.scale == "token" else told[row, part]
                )
                assert float(told) == scale
            for at in range(part * width, min((part + 1) * width, part * width + 40)):
                assert float(args.out[row, at].float()) == stored(x[row, at], scale, quant)


def test_nan_stays_nan_and_an_infinity_saturates():
    x = torch.tensor([[math.nan, math.inf, -math.inf, 1.0]])
    for dtype in ("f8_e4m3", "f8_e5m2", "i8"):
        d = QuantizeDescriptor(total_num_rows=1, hidden=4, dtype="f32", quant=Quant(dtype=dtype, scale="none"))
        out = torch.zeros(1, 4, dtype=torch_dtype(dtype))
        QuantizePlan.select(d).run(QuantizeArgs(x=x, out=out))
        got = out.float()[0].tolist()
        assert got[1:] == [LARGEST[dtype], -128.0 if dtype == "i8" else -LARGEST[dtype], 1.0]
        assert math.isnan(got[0]) == (dtype != "i8")


def test_most_limits_the_scale_and_larger_elements_saturate():
    """As scale_ub of vLLM: with most=2, the elements 3, 100 and infinity become the largest number of the dtype."""
    x = torch.tensor([[3.0, -100.0, 0.5, 2.0], [0.25, -1.0, math.inf, 0.0], [1.0, 0.5, -0.25, 0.0], [math.nan, 1.0, 1.0, 1.0]])
    d = QuantizeDescriptor(total_num_rows=4, hidden=4, dtype="f32", quant=Quant(scale="token", most=2.0))
    out, scale = torch.zeros(4, 4, dtype=torch.float8_e4m3fn), torch.zeros(4)
    QuantizePlan.select(d).run(QuantizeArgs(x=x, out=out, scale=scale))
    assert torch.equal(scale[:3], torch.tensor([2.0, 2.0, 1.0]) / 448)
    assert scale[3].isnan()
    assert out.float()[:2].tolist() == [[448.0, -448.0, 112.0, 448.0], [56.0, -224.0, 448.0, 0.0]]
    assert out.float()[2].tolist() == [448.0, 224.0, -112.0, 0.0]


def test_the_default_of_most_is_not_serialised_and_most_is_in_the_kernel():
    assert "most" not in made().canonical_json()
    kernels = {
        Plan.select(made(most=most), Preference(backend="cuda"), Target.parse("sm_90a")).sku.id for most in (None, 1.0, 2.0)
    }
    assert len(kernels) == 3


def test_a_group_of_zeros_has_the_least_scale():
    d = made(rows=1, hidden=128)
    out, scale = torch.ones(1, 128).to(torch.float8_e4m3fn), torch.empty(1, 1)
    QuantizePlan.select(d).run(QuantizeArgs(x=torch.zeros(1, 128).bfloat16(), out=out, scale=scale))
    assert scale.item() == float(np.float32(1e-10) / np.float32(448))
    assert bool((out.float() == 0).all())


@pytest.mark.parametrize(
    ("most", "byte"),
    [
        (448.0, 127),
        (448.0 * (1 + 2.0**-22), 128),  # rounded up, because a scale of 1 would saturate
        (449.0, 128),
        (896.0, 128),
        (224.0, 126),
        (0.0, 0),  # with least=0, the result is 0 and not 0 / 0
        (448.0 * 2.0**-127, 0),
        (448.0 * 2.0**-127 * 1.5, 1),
        (math.inf, 254),
        (-math.inf, 254),
        (math.nan, 255),
        (3.0e38, 247),
    ],
)
def test_a_power_of_two_scale_is_rounded_up_so_that_finite_elements_do_not_saturate(most, byte):
    d = made(rows=1, hidden=8, wide="f32", scale_dtype="f8_e8m0", group=8, least=0.0)
    rest = most if math.isfinite(most) else 1.0
    x = torch.tensor([[most, rest / 4, -rest / 3, 0.0, -0.0, rest, 0.0, most / 3]])
    out, scale = torch.ones(1, 8).to(torch.float8_e4m3fn), torch.zeros(1, 1).to(torch.float8_e8m0fnu)
    QuantizePlan.select(d).run(QuantizeArgs(x=x, out=out, scale=scale))
    assert int(scale.view(torch.uint8)) == byte
    values, bits = out.float()[0], x[0].double() / 2.0 ** (byte - 127)
    if math.isfinite(most):
        assert bool((bits.abs() <= 448.0 * (1 + 2.0**-5)).all())
        assert torch.equal(values, bits.float().to(torch.float8_e4m3fn).float())
    else:
        assert math.isnan(float(values[0])) == math.isnan(most)
        assert float(values[3]) == 0 or math.isnan(most)


def test_a_power_of_two_scale_equals_the_formula_of_other_libraries():
    """The formula is 2 ** ceil(log2(most / 448)), for numbers whose logarithm is not near an integer."""
    d = made(rows=64, hidden=128, scale_dtype="f8_e8m0", least=1e-4)
    x = (
        torch.randn(64, 128, generator=torch.Generator().manual_seed(5)).bfloat16()
        * torch.logspace(-6, 6, 64)[:, None].bfloat16()
    )
    out, scale = torch.empty(64, 128).to(torch.float8_e4m3fn), torch.empty(64, 1).to(torch.float8_e8m0fnu)
    QuantizePlan.select(d).run(QuantizeArgs(x=x, out=out, scale=scale))
    want = torch.pow(2.0, torch.ceil(torch.log2(x.abs().float().amax(1).clamp(1e-4) / 448.0)))
    assert torch.equal(scale.float()[:, 0], want)


def test_dequantised_values_differ_by_at_most_half_a_step():
    d = made(rows=9, hidden=512)
    x = torch.randn(9, 512).bfloat16()
    out, scale, back = torch.empty(9, 512).to(torch.float8_e4m3fn), torch.empty(9, 4), torch.empty(9, 512).bfloat16()
    QuantizePlan.select(d).run(QuantizeArgs(x=x, out=out, scale=scale))
    DequantizePlan.select(DequantizeDescriptor(total_num_rows=9, hidden=512, dtype="bf16")).run(
        DequantizeArgs(x=out, scale=scale, out=back)
    )
    assert bool(
        ((back - x).abs().float() <= 2.0**-4 * 1.01 * x.abs().float() + scale.repeat_interleave(128, 1) * 2.0**-9).all()
    )


@pytest.mark.parametrize(
    ("make", "path", "word"),
    [
        (lambda: made(hidden=100), "quant.group", "a divisor of hidden=100"),
        (lambda: made(scale="token", scale_layout="column"), "scale_layout", "have a layout"),
        (lambda: made(rows=0, scale="tensor"), "total_num_rows", "1 or more"),
        (lambda: Quant(group=0), "group", "greater than or equal to 1"),
        (lambda: Quant(scale="row"), "scale", "'none'"),
        (lambda: Quant(least=-1.0), "least", "greater than or equal to 0"),
        (lambda: Quant(most=1e-11), "most", "at least least"),
        (lambda: Quant(scale="block", most=1.0), "most", "tensor, token or group"),
        (lambda: Quant(scale="static", most=1.0), "most", "tensor, token or group"),
        (lambda: Quant(most=0.0), "most", "greater than 0"),
        (lambda: Quant(scale="none", scale_dtype="f8_e8m0"), "scale_dtype", "there is no scale"),
        (lambda: Quant(scale_dtype="bf16"), "scale_dtype", "f8_e8m0"),
    ],
)  # fmt: skip
def test_contradictory_fields_are_refused(make, path, word):
    with pytest.raises(DescriptorError) as caught:
        make()
    assert caught.value.issues[0].argument == path
    assert word in str(caught.value)


def test_a_scale_tensor_of_the_wrong_layout_is_refused():
    d = made(scale_layout="column")
    args = inputs.make_args(d, seed=0)
    with pytest.raises(ArgumentError, match="scale"):
        QuantizePlan.select(d).run(QuantizeArgs(x=args.x, out=args.out, scale=torch.empty(5, 2)))


def test_the_named_plans_are_plans():
    assert issubclass(q.QuantizePlan, Plan)
    assert issubclass(q.DequantizePlan, Plan)
