"""The torch reference of gated activations against independent formulas, and descriptors and calls that are refused."""

import math

import mpmath
import pytest
import torch

from opfacade import Plan, load_descriptor
from opfacade.core.dtypes import torch_dtype
from opfacade.errors import ArgumentError, DescriptorError
from opfacade.plans._gated.program import GATE, UP
from opfacade.plans.activation import EXAMPLES, GatedActivationArgs, GatedActivationDescriptor, GatedActivationPlan, Quant
from opfacade.programs.expression import apply, coord, scalar, value
from opfacade.testing import inputs, numerics

mp = mpmath.mp.clone()
mp.dps = 40


def sigmoid(x):
    return 1 / (1 + mp.exp(-x))


def single(number):
    """The number rounded to f32."""
    return None if number is None else torch.tensor(number, dtype=torch.float32).item()


OAI_ALPHA = single(1.702)
FUNCTIONS = {
    "silu": lambda x, alpha: x * sigmoid((alpha or 1) * x),
    "gelu": lambda x, alpha: x * mp.erfc(-x / mp.sqrt(2)) / 2,
    "gelu_tanh": lambda x, alpha: x * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (x + mp.mpf(0.044715) * x**3))) / 2,
    "relu2": lambda x, alpha: max(x, mp.mpf(0)) ** 2,
    "identity": lambda x, alpha: x,
    "swiglu_oai": lambda x, alpha: x * sigmoid((OAI_ALPHA if alpha is None else alpha) * x),
}


def one(activation, gate, up, limit=None, alpha=None):
    """The definition for one element; up is None if the activation is not gated."""
    limit = 7.0 if activation == "swiglu_oai" and limit is None else limit
    if limit is not None:
        gate, up = min(gate, limit), None if up is None else max(-limit, min(up, limit))
    made = FUNCTIONS[activation](mp.mpf(gate), alpha)
    return made if up is None else made * (mp.mpf(up) + (activation == "swiglu_oai"))


def slack(activation, gate):
    """The allowed relative error: one rounding of the result, plus a term proportional to the exponent, because the exponent is
    a rounded product or contains f32 constants."""
    exponent = gate**2 + abs(gate) ** 3 / 8 if activation.startswith("gelu") else 2 * abs(gate)
    return 2.0**-23 * (1 + exponent)


def problem(**fields):
    return GatedActivationDescriptor(**{"total_num_rows": 4, "width": 19, "dtype": "f32"} | fields)


def ran(descriptor, x):
    out = torch.full((x.shape[0], descriptor.width), math.nan, dtype=torch_dtype(descriptor.dtype))
    Plan.select(descriptor).run(GatedActivationArgs(x=x, out=out))
    return out


FORMS = [
    {"activation": activation, "gate_first": first, "interleaved": alternate}
    for activation in FUNCTIONS
    for first in (True, False)
    for alternate in (True, False)
]
FORMS += [{"activation": name, "gated": False} for name in FUNCTIONS if name != "swiglu_oai"]
FORMS += [
    {"limit": 1.5},
    {"alpha": 0.3},
    {"alpha": 1.702, "limit": 2.0},
    {"activation": "swiglu_oai", "limit": 0.5, "alpha": 3.0},
    {"activation": "gelu", "limit": 1.0, "gated": False},
    {"alpha": 2.0, "gated": False},
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(f"{k}={v}" for k, v in form.items()))
def test_every_element_equals_the_formula(form):
    descriptor = problem(**form)
    x = 3 * torch.randn(4, 38 if descriptor.gated else 19, generator=torch.Generator().manual_seed(1))
    out, rows = ran(descriptor, x), x.tolist()
    for r in range(4):
        for j in range(19):
            row, first = rows[r], descriptor.gate_first
            at = (2 * j, 2 * j + 1) if descriptor.interleaved else (j, 19 + j)
            gate, up = (row[at[0]], row[at[1]]) if descriptor.gated else (row[j], None)
            gate, up = (gate, up) if first else (up, gate)
            want = float(one(descriptor.activation, gate, up, form.get("limit"), single(form.get("alpha"))))
            assert float(out[r, j]) == pytest.approx(want, rel=slack(descriptor.activation, gate), abs=1e-38)


def test_silu_and_mul_equals_torch():
    x = torch.randn(5, 24)
    got = ran(GatedActivationDescriptor(total_num_rows=5, width=12, dtype="f32"), x)
    torch.testing.assert_close(got, torch.nn.functional.silu(x[:, :12]) * x[:, 12:])


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_infinite_inputs_give_the_limits_and_nan_gives_nan(activation):
    gate, up = torch.tensor([[-math.inf, math.inf, math.nan, 1.0, -3e38]]), torch.tensor([[2.0, 2.0, 2.0, math.nan, 1.0]])
    got = ran(
        GatedActivationDescriptor(total_num_rows=1, width=5, dtype="f32", activation=activation), torch.cat([gate, up], 1)
    )
    assert got[0, 0] == 0
    assert got[0, 1] == math.inf
    assert got[0, 2:4].isnan().all()
    assert got[0, 4] == 0


def test_a_limit_propagates_nan():
    x = torch.tensor([[math.nan, 1.0, 1.0, math.nan]])
    descriptor = GatedActivationDescriptor(total_num_rows=1, width=2, dtype="f32", limit=0.5)
    assert ran(descriptor, x).isnan().all()


@pytest.mark.parametrize("alpha", [1e-30, 1e-3, 1e20, 3e38])
def test_silu_with_any_alpha_has_the_limits_of_its_formula(alpha):
    descriptor = GatedActivationDescriptor(total_num_rows=1, width=3, dtype="f32", gated=False, alpha=alpha)
    got = ran(descriptor, torch.tensor([[-math.inf, -2.0, 5.0]]))[0].tolist()
    want = [0.0, *(float(FUNCTIONS["silu"](mp.mpf(x), mp.mpf(alpha))) for x in (-2.0, 5.0))]
    assert got == pytest.approx(want, rel=1e-6, abs=1e-37)


def test_in_place_equals_out_of_place_and_leaves_the_second_half_unchanged():
    x = torch.randn(6, 30).half()
    for first in (True, False):
        kept, plain = x.clone(), ran(problem(total_num_rows=6, width=15, dtype="f16", gate_first=first), x)
        descriptor = problem(total_num_rows=6, width=15, dtype="f16", gate_first=first, in_place=True)
        Plan.select(descriptor).run(GatedActivationArgs(x=kept))
        assert torch.equal(kept[:, :15], plain)
        assert torch.equal(kept[:, 15:], x[:, 15:])


@pytest.mark.parametrize(("dtype", "most"), [("f8_e4m3", 448.0), ("f8_e5m2", 57344.0), ("i8", 127.0)])
def test_a_static_scale_divides_and_the_output_saturates(dtype, most):
    x = 4 * torch.randn(4, 38, generator=torch.Generator().manual_seed(2))
    x[0, 0], x[0, 19] = 1e6, 1e6
    scale = torch.tensor([0.37])
    descriptor = problem(quant=Quant(dtype=dtype, scale="static"))
    out = torch.zeros(4, 19, dtype=torch_dtype(dtype))
    Plan.select(descriptor).run(GatedActivationArgs(x=x, scale=scale, out=out))
    gate, up = x.double().chunk(2, 1)
    quotient = (torch.nn.functional.silu(gate) * up / scale.double()).clamp(-128 if dtype == "i8" else -most, most)
    want = quotient.round().to(torch.int8) if dtype == "i8" else quotient.to(out.dtype)
    assert torch.equal(out.float(), want.float())
    assert float(out[0, 0]) == most


def test_an_expression_replaces_the_activation():
    x = torch.randn(4, 38)
    descriptor = problem(expression=GATE * UP * scalar("alpha") + scalar("limit"), alpha=0.5, limit=3.0)
    torch.testing.assert_close(ran(descriptor, x), x[:, :19] * x[:, 19:] * 0.5 + 3.0)
    other = problem(expression=GATE * UP * scalar("alpha") + scalar("limit"), alpha=0.25, limit=1.0)
    assert other.key == descriptor.key


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.activation}-{e.total_num_rows}")
def test_a_serialised_descriptor_is_equal_and_its_plan_keeps_the_error_bound(example):
    again = load_descriptor(example.canonical_json())
    assert again == example == GatedActivationDescriptor.model_validate_json(example.model_dump_json())
    assert again.digest() == example.digest()
    assert again.program()["out"] is example.program()["out"]
    plan = GatedActivationPlan.select(example)
    for seed in range(3):
        args = inputs.make_args(example, seed=seed)
        before = numerics.snapshot(example, args)
        plan.run(args)
        assert numerics.check(example, args, plan.sku, before=before).worst <= 1


def test_a_shared_subexpression_survives_serialisation():
    part = GATE * UP + 1.0
    descriptor = problem(expression=part * part / (1.0 + abs(part)))
    assert len(descriptor.model_dump(mode="json")["lets"]) == 1
    assert load_descriptor(descriptor.canonical_json()).expression is descriptor.expression


@pytest.mark.parametrize(
    ("fields", "argument", "word"),
    [
        ({"gated": False, "gate_first": False}, "gate_first", "without ups"),
        ({"gated": False, "interleaved": True}, "interleaved", "without ups"),
        ({"gated": False, "activation": "swiglu_oai"}, "gated", "multiplies by up"),
        ({"in_place": True, "interleaved": True}, "in_place", "False for interleaved"),
        ({"activation": "gelu", "alpha": 2.0}, "alpha", "whose sigmoid has no slope"),
        ({"activation": "swish"}, "activation", "silu"),
        ({"limit": 0.0}, "limit", "greater than 0"),
        ({"limit": math.inf}, "limit", "finite number"),
        ({"alpha": -1.0}, "alpha", "greater than or equal to"),
        ({"width": 0}, "width", "greater than or equal to 1"),
        ({"dtype": "f8_e4m3"}, "dtype", "f16"),
        ({"quant": Quant(scale="static"), "in_place": True}, "in_place", "False with quant"),
        ({"expression": GATE * UP, "activation": "gelu"}, "activation", "the default with an expression"),
        ({"expression": GATE * 2.0}, "expression", "none of up"),
        ({"expression": GATE * UP, "alpha": 1.0}, "expression", "none of alpha"),
        ({"expression": GATE * value("q", "f32") * UP}, "expression.args.0.args.1.name", "gate, up"),
        ({"expression": GATE * UP * scalar("limit")}, "expression.args.1.name", "no numbers"),
        ({"expression": GATE < UP}, "expression", "type f32"),
        ({"expression": GATE * UP * apply("f32", coord(0))}, "expression.args.1.args.0", "the inputs at the position"),
    ],
)
def test_contradictory_fields_are_refused(fields, argument, word):
    with pytest.raises(DescriptorError, match=word) as caught:
        problem(**fields)
    assert caught.value.issues[0].argument == argument


def test_operands_of_a_wrong_shape_or_stride_are_refused():
    x, out = torch.randn(4, 38), torch.empty(4, 19)
    plan = GatedActivationPlan.select(problem())
    for args, code in [
        (GatedActivationArgs(x=x[:, :37], out=out), "OPF-A011"),
        (GatedActivationArgs(x=x), "OPF-A0"),
        (GatedActivationArgs(x=x, out=x[:, :19]), "OPF-A040"),
        (GatedActivationArgs(x=x.half(), out=out), "OPF-A010"),
    ]:
        with pytest.raises(ArgumentError, match=code):
            plan.run(args)
    alternate = GatedActivationPlan.select(problem(interleaved=True))
    wide = torch.randn(4, 41)
    with pytest.raises(ArgumentError, match="x expected"):
        # an odd row stride, so a pair may begin at an unaligned address
        alternate.run(GatedActivationArgs(x=wide[:, :38], out=out))
