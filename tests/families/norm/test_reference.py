"""The norms against their formula and against the roundings of other libraries, and refusals."""

import numpy as np
import pytest
import torch

from opfacade import Plan, load_descriptor
from opfacade.errors import ArgumentError, DescriptorError
from opfacade.plans import norm
from opfacade.plans.norm import EXAMPLES, NormArgs, NormDescriptor, NormPlan, Quant
from opfacade.testing import inputs, numerics
from tests.families.norm import oracle

U = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24}


def made(hidden=96, rows=5, **fields):
    return NormDescriptor(**({"kind": "rms", "total_num_rows": rows, "hidden": hidden, "dtype": "bf16"} | fields))


FORMS = {
    **{f"example-{i}": one for i, one in enumerate(EXAMPLES)},
    "plain_f32": made(dtype="f32"),
    "layer_groups": made(kind="layer", groups=3, bias=True),
    "sigmoid": made(gate="sigmoid", groups=2),
    "one_plus_f32": made(weight="one_plus", weight_dtype="f32"),
    "token": made(quant=Quant(scale="token", dtype="f8_e5m2")),
    "groups": made(hidden=256, quant=Quant(group=64), residual=True, residual_sum="rounded", normed="rounded"),
    "column": made(hidden=256, quant=Quant(scale_layout="column")),
    "groups_of_groups": made(hidden=512, groups=2, quant=Quant(group=128)),
    "one_group": made(hidden=128, quant=Quant(group=128, scale_layout="column_padded4")),
    "powers": made(hidden=256, quant=Quant(scale_dtype="f8_e8m0", scale_layout="column_padded4"), residual=True),
    "powers_token": made(quant=Quant(scale_dtype="f8_e8m0", scale="token", dtype="i8")),
    "powers_static": made(quant=Quant(scale_dtype="f8_e8m0", scale="static")),
    "token_groups": made(groups=4, quant=Quant(scale="token")),
    "tensor": made(quant=Quant(scale="tensor")),
    "tensor_groups": made(groups=4, quant=Quant(scale="tensor", dtype="i8"), residual=True, full_out=True, num_valid=True),
    "tensor_powers": made(kind="layer", dtype="f32", bias=True, quant=Quant(scale="tensor", scale_dtype="f8_e8m0")),
    "no_scale": made(quant=Quant(scale="none")),
    "none": made(rows=0),
    "everything": made(kind="layer", hidden=256, bias=True, residual=True, gate="silu", quant=Quant(group=32), full_out=True,
                       num_valid=True),
}  # fmt: skip


@pytest.fixture(params=FORMS)
def problem(request):
    return FORMS[request.param]


def test_each_norm_equals_its_formula(problem):
    d = problem
    args = inputs.make_args(d, seed=4)
    given = NormArgs(
        **{name: None if getattr(args, name) is None else getattr(args, name).clone() for name in NormArgs.__slots__}
    )
    NormPlan.select(d).run(args)
    rows = d.total_num_rows if args.num_valid is None else int(args.num_valid[0])
    cut = [None if t is None else t[:rows] for t in (given.x, given.residual, given.gate)]
    kept, y = oracle.normed(d, cut[0], given.weight, given.bias, cut[1], cut[2])
    if d.residual:
        assert np.array_equal(oracle.wide(args.residual[:rows]), kept)
    full = args.full_out if d.full_out else None if d.quant else args.x if d.in_place else args.out
    if full is not None:
        near(full[:rows], y, 2 * U[d.dtype])
    if d.quant is not None:
        quantised(d, args, y, rows)


def near(got, want, u):
    got = oracle.wide(got)
    assert (np.abs(got - want) <= u * np.abs(want) + 1e-6 * np.abs(want).max(initial=0)).all()


def quantised(d, args, y, rows):
    quant, scale = d.quant, np.ones_like(y)
    if quant.scale == "static":
        scale = scale * oracle.wide(args.scale)
    elif quant.dynamic:
        scale, found = oracle.scales(d, y)
        got = args.scale if quant.scale_layout == "row" else args.scale.t()
        near(got[:rows].reshape(found.shape), found, 4 * U[d.dtype] if d.normed == "rounded" else 1e-5)
        if quant.scale_layout == "column_padded4":
            assert args.scale.shape[1] % 4 == 0
            assert bool(args.scale[:, rows:].isnan().all())
    largest = oracle.LARGEST[quant.dtype]
    want = np.clip(y / scale, -largest, largest)
    step = (
        0.5 if quant.dtype == "i8" else np.maximum(np.abs(want) * (2.0**-4 if quant.dtype == "f8_e4m3" else 2.0**-3), 2.0**-10)
    )
    assert (np.abs(oracle.wide(args.out[:rows].float()) - want) <= step + 3 * U[d.dtype] * np.abs(want) + 1e-5).all()


def test_it_keeps_its_bound(problem):
    plan = NormPlan.select(problem)
    for seed in range(2):
        args = inputs.make_args(problem, seed=seed)
        before = numerics.snapshot(problem, args)
        plan.run(args)
        assert numerics.check(problem, args, plan.sku, before=before).worst <= 1


def test_a_serialised_descriptor_is_equal_and_has_the_same_program(problem):
    assert load_descriptor(problem.canonical_json()) == problem
    again = NormDescriptor.model_validate_json(problem.model_dump_json())
    assert again.program() == problem.program()
    assert again.program().key == problem.program().key
    assert list(problem.operands()) == [n for n in problem.operands() if n in NormArgs.__slots__]


def test_rms_norm_of_a_known_row_has_the_known_result():
    x, w, out = torch.tensor([[3.0, 4.0, 0.0, 0.0]]), torch.tensor([1.0, 2.0, 1.0, 1.0]), torch.full((1, 4), float("nan"))
    plan = Plan.select(NormDescriptor(kind="rms", total_num_rows=1, hidden=4, dtype="f32", eps=0.0))
    plan.run(NormArgs(x=x, weight=w, out=out))
    torch.testing.assert_close(out, torch.tensor([[1.2, 3.2, 0.0, 0.0]]))
    plan.run(NormArgs(x=torch.zeros(1, 4), weight=w, out=out))
    assert bool(out.isnan().all())  # 0 * rsqrt(0) is NaN


def drawn(hidden=512, rows=9):
    return (torch.randn(rows, hidden).bfloat16() * 3, torch.randn(rows, hidden).bfloat16(), torch.randn(hidden).bfloat16())


def run(d, x, residual, weight):
    out, total = torch.empty_like(x), residual.clone()
    Plan.select(d).run(NormArgs(x=x, residual=total, weight=weight, out=out))
    return out, total


def test_the_huggingface_preset_has_the_bits_of_transformers_up_to_f32_rounding():
    x, r, w = drawn()
    out, total = run(norm.huggingface(total_num_rows=9, hidden=512, dtype="bf16", residual=True), x, r, w)
    s = x + r
    wide = s.float()
    want = w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(torch.bfloat16)
    assert torch.equal(total, s)
    assert (out != want).float().mean() < 0.001


def test_the_gemma_preset_has_the_bits_of_gemma_up_to_f32_rounding():
    x, r, w = drawn()
    out, _ = run(norm.gemma(total_num_rows=9, hidden=512, dtype="bf16", residual=True), x, r, w)
    wide = (x + r).float()
    want = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + w.float())).to(torch.bfloat16)
    assert (out != want).float().mean() < 0.001


def test_the_vllm_and_flashinfer_presets_round_differently():
    x, r, w = drawn()
    fields = {"total_num_rows": 9, "hidden": 512, "dtype": "bf16", "residual": True}
    one, other = run(norm.vllm(**fields), x, r, w)[0], run(norm.flashinfer(**fields), x, r, w)[0]
    assert 0.01 < (one != other).float().mean() < 0.9
    s = x.double() + r.double()
    want = (s * torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + 1e-6) * w.double()).bfloat16()
    assert (other != want).float().mean() < 0.001
    assert norm.vllm(**fields) == norm.huggingface(**fields)
    assert norm.flashinfer(**fields | {"normed": "rounded"}).normed == "rounded"


@pytest.mark.parametrize(
    ("fields", "path", "word"),
    [
        ({"groups": 5}, "groups", "a divisor of hidden=96"),
        ({"quant": Quant(group=64)}, "quant.group", "a divisor of 96"),
        ({"quant": Quant(scale="block")}, "quant.scale", "static, tensor, token or group"),
        ({"quant": Quant(scale="tensor"), "rows": 0}, "total_num_rows", "1 or more"),
        ({"quant": Quant(scale="tensor"), "in_place": True}, "in_place", "False with quant"),
        ({"full_out": True}, "full_out", "False without quant"),
        ({"in_place": True, "quant": Quant(scale="token")}, "in_place", "False with quant"),
        ({"eps": -1.0}, "eps", "0 or more"),
        ({"hidden": 0}, "hidden", "greater than or equal to 1"),
        ({"kind": "batch"}, "kind", "'rms'"),
        ({"dtype": "i8"}, "dtype", "'f16'"),
    ],
)
def test_contradictory_fields_are_refused(fields, path, word):
    with pytest.raises(DescriptorError) as caught:
        made(**fields)
    assert caught.value.issues[0].argument == path
    assert word in str(caught.value)


def test_scale_layout_is_refused_without_groups():
    with pytest.raises(DescriptorError, match="scale_layout"):
        Quant(scale="token", scale_layout="column")


def test_operands_of_a_wrong_shape_or_dtype_are_refused():
    d = made(quant=Quant(group=32, scale_layout="column"))
    args = inputs.make_args(d, seed=0)
    plan = NormPlan.select(d)
    for name, wrong in (
        ("scale", torch.empty(5, 3)),
        ("weight", torch.ones(95).bfloat16()),
        ("out", torch.empty(5, 96)),
        ("bias", args.weight),
    ):
        changed = {one: getattr(args, one) for one in NormArgs.__slots__} | {name: wrong}
        with pytest.raises(ArgumentError, match=name):
            plan.run(NormArgs(**changed))
    plan, x = NormPlan.select(made(residual=True, dtype="f32")), torch.ones(5, 96)
    with pytest.raises(ArgumentError, match="OPF-A040"):
        plan.run(NormArgs(x=x, residual=x, weight=torch.ones(96), out=torch.empty(5, 96)))


def test_norm_plan_is_a_plan():
    assert issubclass(NormPlan, Plan)
