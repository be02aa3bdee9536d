"""Products with weights of few bits: numbers by hand, and plain torch in f64 with the libraries' formulas."""

import math
from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.errors import ArgumentError, DescriptorError, IndexDataError
from opfacade.plan import forget_selections
from opfacade.plans.matmul import EXAMPLES, MatmulArgs, MatmulDescriptor, Scaling, Weight
from opfacade.testing import inputs, numerics

FORMS = [one for one in EXAMPLES if isinstance(one, MatmulDescriptor) and one.weight_format is not None]
REFERENCE = Preference(backend="reference")
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def ran(form, x, n, **tensors):
    """x times a weight of that format, in f64 up to the precision of out: x is f32."""
    d = MatmulDescriptor(total_num_rows=len(x), n=n, k=x.shape[1], dtype="f32", weight_format=form)
    out = torch.full((len(x), n), math.nan)
    Plan.select(d, REFERENCE, Target.cpu()).run(MatmulArgs(x=x, out=out, **tensors))
    return out


def packed(codes):
    """[n, k] codes in 0 to 15, two in a byte."""
    return (codes[:, ::2] + 16 * codes[:, 1::2]).to(torch.uint8)


def columns(form, k, **tensors):
    """The numbers [n, k] that codes represent: the product with a unit matrix."""
    return ran(form, torch.eye(k), len(tensors["weight"]), **tensors).T


def codes_of(n, k, seed=0):
    torch.manual_seed(seed)
    return torch.randint(0, 16, (n, k))


def test_the_sixteen_codes_of_each_type_stand_for_their_numbers():
    weight, one = packed(torch.arange(16)[None]), torch.ones(1, 1, dtype=torch.bfloat16)
    found = {kind: columns(Weight(dtype=kind), 16, weight=weight, weight_scale=one)[0] for kind in ("int4", "uint4", "e2m1")}
    assert found["uint4"].tolist() == list(range(16))
    assert found["int4"].tolist() == [*range(8), *range(-8, 0)]
    assert found["e2m1"].tolist() == E2M1


def test_the_lower_half_of_a_byte_has_the_element_before():
    one = torch.ones(1, 1, dtype=torch.bfloat16)
    made = columns(Weight(dtype="uint4"), 2, weight=torch.tensor([[0x31]], dtype=torch.uint8), weight_scale=one)
    assert made.tolist() == [[1, 3]]


@pytest.mark.parametrize("group", [16, 32, 64, 128])
@pytest.mark.parametrize(("zero", "offset"), [("none", 0), ("int", 0), ("float", 8), ("added", 8)])
def test_groups_with_zero_points_stand_for_what_the_libraries_write(group, zero, offset):
    """AWQ and GPTQ: (q - z) * s with z of 4 bits; HQQ: (q - z) * s with z of 16 bits; torchao: q * s + z. The last group is
    incomplete."""
    n, k = 5, 200
    codes, many = codes_of(n, k), -(-(k + offset) // group)
    scale = torch.rand(n, many).half()
    zeros = {"int": torch.randint(0, 16, (n, many), dtype=torch.uint8), "float": (8 * torch.rand(n, many)).half()}
    zeros["added"] = torch.randn(n, many).half()
    want = torch.zeros(n, k).double()
    for row in range(n):
        for j in range(k):
            q, s = float(codes[row, j]), float(scale[row, (j + offset) // group])
            z = float(zeros[zero][row, (j + offset) // group]) if zero in zeros else 0.0
            want[row, j] = q * s + z if zero == "added" else (q - z) * s
    given = {"weight_zero": zeros[zero]} if zero in zeros else {}
    weight = Weight(dtype="uint4", group=group, group_offset=offset, scale_dtype="f16", zero=zero)
    assert torch.equal(columns(weight, k, weight=packed(codes), weight_scale=scale, **given), want.float())


def test_the_code_behind_an_odd_k_has_no_part():
    one, stored = torch.ones(1, 1, dtype=torch.bfloat16), torch.tensor([[0x31, 0xF2]], dtype=torch.uint8)
    assert columns(Weight(dtype="uint4"), 3, weight=stored, weight_scale=one).tolist() == [[1, 3, 2]]


def test_activation_order_names_the_group_of_each_element_and_a_slice_keeps_the_table():
    """GPTQ's g_idx."""
    n, k = 3, 24
    codes, scale = codes_of(n, k), torch.rand(n, 5).bfloat16()
    which = torch.randint(0, 5, (k,), dtype=torch.int32)
    want = codes.double() * scale.double()[:, which.long()]
    weight, given = Weight(dtype="uint4", num_groups=5), {"weight": packed(codes), "weight_scale": scale}
    found = columns(weight, k, weight_groups=which, **given)
    assert torch.equal(found, want.float())
    part = {"weight": packed(codes[:, 10:]), "weight_scale": scale, "weight_groups": which[10:].contiguous()}
    assert torch.equal(columns(weight, k - 10, **part), want[:, 10:].float())


def test_a_group_that_is_none_counts_as_nought_unless_it_is_refused(monkeypatch):
    codes, scale = codes_of(2, 4), torch.ones(2, 3).bfloat16()
    given = {"weight": packed(codes), "weight_scale": scale}
    wrong = torch.tensor([0, 3, -1, 2], dtype=torch.int32)
    found = columns(Weight(dtype="uint4", num_groups=3), 4, weight_groups=wrong, **given)
    assert torch.equal(found, codes.float() * torch.tensor([1.0, 0, 0, 1]))
    monkeypatch.setenv("OPFACADE_VALIDATE", "indices")
    forget_selections()
    with pytest.raises(IndexDataError, match="weight_groups"):
        columns(Weight(dtype="uint4", num_groups=3), 4, weight_groups=wrong, **given)


def test_a_zero_point_above_127_is_undefined_and_refused(monkeypatch):
    """bf16 represents 128 plus a code; other levels are multiplied by a number."""
    form = Weight(dtype="uint4", scale_dtype="bf16", zero="int")
    given = {"weight": packed(codes_of(2, 4)), "weight_scale": torch.ones(2, 1).bfloat16()}
    zero = torch.tensor([[127], [128]], dtype=torch.uint8)
    monkeypatch.setenv("OPFACADE_VALIDATE", "indices")
    forget_selections()
    with pytest.raises(IndexDataError, match=r"weight_zero\[1, 0\].*\[0, 128\)"):
        columns(form, 4, weight_zero=zero, **given)
    zero[1] = 127
    assert torch.equal(columns(form, 4, weight_zero=zero, **given), codes_of(2, 4).float() - 127)


WRONG = {
    "weight_scale": (0.0, r"weight_scale\[1, 0\] expected finite values other than 0, got 0.0"),
    "weight_zero": (16, r"weight_zero\[1, 0\] expected a code of four bits, 0 to 15, got 16"),
    "weight_global": (0.0, r"weight_global\[0\] expected finite values other than 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_full_validation_refuses_scales_of_0_and_zero_points_that_are_not_codes(name, monkeypatch):
    """Other levels multiply them."""
    tensors = {"weight_scale": torch.ones(2, 1).half(), "weight_zero": torch.full((2, 1), 15, dtype=torch.uint8)}
    tensors |= {"weight": torch.tensor([[0x31], [0x42]], dtype=torch.uint8), "weight_global": torch.ones(1)}
    form = Weight(dtype="uint4", scale_dtype="f16", zero="int", global_scale=True)
    value, words = WRONG[name]
    wrong = tensors | {name: tensors[name].clone()}
    wrong[name][-1] = value
    forget_selections()
    assert columns(form, 2, **wrong).isfinite().all()
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    forget_selections()
    assert columns(form, 2, **tensors).isfinite().all()
    with pytest.raises(ArgumentError, match=words):
        columns(form, 2, **wrong)


def test_a_scale_of_0_of_eight_bits_is_refused_too(monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    forget_selections()
    scale = torch.zeros(2, 1).to(torch.float8_e4m3fn)
    with pytest.raises(ArgumentError, match=r"weight_scale\[0, 0\].*other than 0"):
        columns(Weight(dtype="e2m1", scale_dtype="f8_e4m3"), 2, weight=packed(codes_of(2, 2)), weight_scale=scale)


def test_mxfp4_and_nvfp4_multiply_their_scales():
    codes = codes_of(4, 96)
    values = torch.tensor(E2M1).double()[codes]
    powers = torch.randint(-6, 7, (4, 3))
    mx = columns(
        Weight(dtype="e2m1", group=32, scale_dtype="f8_e8m0"), 96,
        weight=packed(codes), weight_scale=powers.float().exp2().to(torch.float8_e8m0fnu),
    )  # fmt: skip
    assert torch.equal(mx, (values * powers.double().exp2().repeat_interleave(32, 1)).float())
    scale, whole = (1 + torch.rand(4, 6)).to(torch.float8_e4m3fn), torch.tensor([0.75])
    nv = columns(
        Weight(dtype="e2m1", group=16, scale_dtype="f8_e4m3", global_scale=True), 96,
        weight=packed(codes), weight_scale=scale, weight_global=whole,
    )  # fmt: skip
    assert torch.equal(nv, (values * scale.double().repeat_interleave(16, 1) * 0.75).float())


def test_fp8_weights_have_a_scale_for_each_column():
    stored, scale = torch.randn(5, 33).to(torch.float8_e4m3fn), torch.rand(5, 1)
    found = columns(Weight(dtype="f8_e4m3", scale_dtype="f32"), 33, weight=stored, weight_scale=scale)
    assert torch.equal(found, (stored.double() * scale.double()).float())


@pytest.mark.parametrize("dequantise", ["exact", "rounded"])
def test_numbers_are_rounded_to_the_type_of_x_where_the_format_says_so(dequantise):
    """One product of bf16: 13 * 1.0078125 has 10 bits of significand."""
    d = MatmulDescriptor(
        total_num_rows=1, n=1, k=2, dtype="bf16", out_dtype="f32", weight_format=Weight(dtype="uint4", dequantise=dequantise)
    )
    scale, out = torch.tensor([[1.0078125]]).bfloat16(), torch.empty(1, 1)
    x = torch.tensor([[1.0, 0.0]]).bfloat16()
    given = {"weight": torch.tensor([[13]], dtype=torch.uint8), "weight_scale": scale}
    Plan.select(d, REFERENCE, Target.cpu()).run(MatmulArgs(x=x, out=out, **given))
    assert out.item() == {"exact": 13.1015625, "rounded": 13.125}[dequantise]


@pytest.mark.parametrize("bad", ["nibbles", "zero", "group", "global"])
def test_the_bound_catches_a_weight_that_is_read_wrong(bad):
    """Swapped halves of a byte, a zero point off by one, the scale of the previous group, a lost global scale."""
    d = {"zero": FORMS[1], "global": FORMS[4]}.get(bad, FORMS[0])
    args = inputs.make_args(d, seed=3)
    plan = Plan.select(d, REFERENCE, Target.cpu())
    plan.run(args)
    assert numerics.check(d, args, plan.sku).worst <= 1
    wrong = {
        "nibbles": {"weight": args.weight % 16 * 16 + args.weight // 16},
        "zero": {"weight_zero": None if args.weight_zero is None else (args.weight_zero + 1) % 16},
        "group": {"weight_scale": args.weight_scale.view(torch.uint8).roll(args.weight_scale.itemsize, -1).view(
            args.weight_scale.dtype)},
        "global": {"weight_global": torch.ones(1)},
    }[bad]  # fmt: skip
    plan.run(replace(args, **wrong))
    assert numerics.check(d, args, plan.sku).worst > 1


REFUSED = {
    "zero of e2m1": ({"dtype": "e2m1", "zero": "int"}, {}, "zero expected none"),
    "a code as zero of int4": ({"dtype": "int4", "zero": "int"}, {}, "zero expected"),
    "powers of two as zeros": ({"dtype": "uint4", "zero": "float", "scale_dtype": "f8_e8m0"}, {}, "scale_dtype expected"),
    "two ways of groups": ({"dtype": "uint4", "group": 32, "num_groups": 3}, {}, "num_groups expected null"),
    "an offset past a group": ({"dtype": "uint4", "group": 32, "group_offset": 32}, {}, "group_offset expected below 32"),
    "x of 8 bits": ({"dtype": "uint4"}, {"dtype": "i8"}, "dtype expected f16, bf16, f32"),
    "columns contiguous": ({"dtype": "uint4"}, {"weight_layout": "kn"}, "weight_layout expected nk"),
    "f16 beyond its range": ({"dtype": "int4", "dequantise": "rounded"}, {"dtype": "f16"}, "dequantise expected exact"),
    "f16 before the global scale": (
        {"dtype": "e2m1", "scale_dtype": "f8_e4m3", "global_scale": True, "dequantise": "rounded"}, {"dtype": "f16"},
        "a global one",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_fields_that_contradict_each_other_are_refused(case):
    weight, fields, words = REFUSED[case]
    with pytest.raises(DescriptorError, match=words):
        MatmulDescriptor(**{"total_num_rows": 1, "n": 2, "k": 4, "dtype": "bf16", "weight_format": weight, **fields})


def test_a_kernel_declines_numbers_that_are_no_sum_of_two_by_name_and_with_the_cure():
    from opfacade import explain

    weight = Weight(dtype="uint4", group=32, zero="float")
    problem = MatmulDescriptor(total_num_rows=1, n=8, k=32, dtype="bf16", weight_format=weight)
    found = explain(problem, Preference(backend="cuda"), Target.parse("sm_90a"))
    assert found.chosen is None
    reasons = {reason.field: reason.hint for option in found.options for reason in option.reasons}
    assert reasons["weight_format.zero"] == 'Set dequantise="rounded".'


def infinite(form, x_dtype="f32", scaling=None, **tensors):
    """The product of [[1, 1], [1, -1], [0, 0]] with codes [[3, 1]]: sums 4, 2 and 0; f8 rows have a scale of 1."""
    rows = torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.0, 0.0], [-1.0, 0.0]])
    k = 2 if form.group is None else 2 * form.group
    x = torch.zeros(4, k)
    x[:, :: k // 2] = rows
    codes = torch.zeros(1, k, dtype=torch.int64)
    codes[0, :: k // 2] = torch.tensor([3, 1])
    d = MatmulDescriptor(total_num_rows=4, n=1, k=k, dtype=x_dtype, weight_format=form, out_dtype="f32", scaling=scaling)
    out, given = torch.full((4, 1), 7.0), x if x_dtype == "f32" else x.to(torch.float8_e4m3fn)
    more = {} if scaling is None else {"x_scale": torch.ones(4)}
    args = MatmulArgs(x=given, weight=packed(codes), out=out, **tensors, **more)
    Plan.select(d, REFERENCE, Target.cpu()).run(args)
    return [str(one) for one in out.flatten().tolist()]


INF, ONE = torch.tensor([[math.inf]]), torch.ones(1, 1)
ALL = torch.tensor([-math.inf])


@pytest.mark.parametrize(
    ("form", "tensors", "want"),
    [
        (Weight(dtype="uint4", scale_dtype="f32"), {"weight_scale": INF}, ["inf", "inf", "nan", "-inf"]),
        (
            Weight(dtype="uint4", scale_dtype="f32", dequantise="group_sum"),
            {"weight_scale": -INF},
            ["-inf", "-inf", "nan", "inf"],
        ),
        (Weight(dtype="uint4", scale_dtype="f32", dequantise="rounded"), {"weight_scale": INF}, ["inf", "nan", "nan", "nan"]),
        (
            Weight(dtype="uint4", scale_dtype="f32", global_scale=True),
            {"weight_scale": ONE, "weight_global": ALL},
            ["-inf", "-inf", "nan", "inf"],
        ),
        (
            Weight(dtype="uint4", scale_dtype="f32", zero="added", global_scale=True),
            {"weight_scale": ONE, "weight_zero": 0 * ONE, "weight_global": ALL},
            ["-inf", "-inf", "nan", "inf"],
        ),
        (
            Weight(dtype="uint4", scale_dtype="f32", zero="added"),
            {"weight_scale": INF, "weight_zero": 0 * ONE},
            ["inf", "nan", "nan", "nan"],
        ),
    ],
)
def test_an_infinite_scale_multiplies_the_sum_of_a_column(form, tensors, want):
    """A rounded factor, or an added zero point, makes each number infinite."""
    assert infinite(form, **tensors) == want


def test_an_infinite_scale_of_a_group_multiplies_its_sum_for_rows_of_e4m3():
    """The first of two groups has the sums 3, 3, 0 and -3."""
    form = Weight(dtype="uint4", group=16, scale_dtype="f32", dequantise="group_sum")
    scale = torch.tensor([[math.inf, 1.0]])
    assert infinite(form, "f8_e4m3", Scaling(kind="token"), weight_scale=scale) == ["inf", "inf", "nan", "-inf"]
