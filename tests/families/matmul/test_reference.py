"""Products against their formula, element by element; edges and refusals."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from opfacade import Plan, load_descriptor
from opfacade.errors import DescriptorError, OpfacadeError
from opfacade.plans.matmul import EXAMPLES, MatmulArgs, MatmulDescriptor, MatmulPlan, Scaling
from opfacade.plans.quantize import Quant, QuantizeDescriptor, QuantizePlan
from opfacade.testing import inputs, numerics

_PLAIN = [
    one for one in EXAMPLES if isinstance(one, MatmulDescriptor) and one.weight_format is None
]  # tested in test_weights.py
FORMS = {f"example-{i}": one for i, one in enumerate(_PLAIN)} | {
    "batched-block": MatmulDescriptor(
        total_num_rows=5, n=150, k=140, batch=2, dtype="f8_e4m3", scaling=Scaling(kind="block", x_scale_layout="column")
    ),
    "offset": MatmulDescriptor(
        total_num_rows=4, n=130, k=200, dtype="f8_e4m3", scaling=Scaling(kind="block", block_offset=(70, 100)), out_dtype="f32"
    ),
    "batched-token": MatmulDescriptor(
        total_num_rows=3, n=8, k=20, batch=3, dtype="i8", scaling=Scaling(kind="token"), out_dtype="f32", num_valid=True
    ),
    "ranges": MatmulDescriptor(
        total_num_rows=3, n=9, k=20, dtype="i8", scaling=Scaling(kind="token", weight_kind="tensor", weight_starts=(4,))
    ),
    "tall": MatmulDescriptor(
        total_num_rows=11, n=6, k=31, dtype="f16", x_layout="km", num_valid=True, add=True, accumulate=True, beta=0.25
    ),
    "tanh": MatmulDescriptor(total_num_rows=3, n=6, k=9, dtype="f64", activation="tanh", gated=True, bias=True, alpha=-1.5),
}


@pytest.fixture(params=FORMS)
def problem(request):
    return FORMS[request.param]


def whole(d, scale, name):
    """A scale as a function of its indices, (batch, row or column, k)."""
    if scale is None:
        return lambda b, i, k: 1.0
    values, s = scale.double().numpy(), d.scaling
    if name == "weight" and s.of_weight == "tensor":
        return lambda b, i, k: values[sum(i >= start for start in s.weight_starts)]
    if name == "x" and s.kind == "tensor":
        return lambda b, i, k: values[0]
    values = values if d.batch > 1 else values[None]
    if s.kind == "token" or (name == "weight" and s.of_weight == "token"):
        return lambda b, i, k: values[b, i]
    part = 32 if s.kind == "mx32" else 128
    if name == "weight" and s.kind == "block":
        return lambda b, i, k: values[b, (i + s.block_offset[0]) // 128, (k + s.block_offset[1]) // 128]
    if name == "x" and s.x_scale_layout != "row":
        return lambda b, i, k: values[b, k // part, i]
    return lambda b, i, k: values[b, i, k // part]


def function(name, x):
    plain = {
        "none": lambda x: x,
        "silu": lambda x: x / (1 + math.exp(-x)),
        "gelu": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
        "tanh": math.tanh,
    }
    return plain[name](x)


def formula(d, args, out):
    """Element by element, with math.fsum."""
    one = (lambda t: t.double().numpy()) if d.batch > 1 else lambda t: t.double().numpy()[None]
    x, w, rest = one(args.x), one(args.weight), {name: one(t) for name, t in (("add", args.add), ("out", out)) if t is not None}
    x = x if d.x_layout == "mk" else x.swapaxes(1, 2)
    w = w if d.weight_layout == "nk" else w.swapaxes(1, 2)
    if args.x_zero is not None:
        x = x - args.x_zero.double().numpy().reshape(d.batch, -1, 1)
    sx, sw = whole(d, args.x_scale, "x"), whole(d, args.weight_scale, "weight")
    rows = d.total_num_rows if args.num_valid is None else int(args.num_valid[0])

    def linear(b, i, j):
        terms = [float(x[b, i, k] * w[b, j, k]) * float(sx(b, i, k)) * float(sw(b, j, k)) for k in range(d.k)]
        return d.alpha * math.fsum(terms) + (float(args.bias[j]) if d.bias else 0.0)

    found = np.zeros((d.batch, rows, d.n))
    for b, i, j in np.ndindex(found.shape):
        parts = [linear(b, i, d.columns * j + part) for part in range(d.columns)]
        found[b, i, j] = function(d.activation, parts[0]) * (parts[1] if d.gated else 1.0)
        found[b, i, j] += d.beta * (rest["add"][b, i, j] if d.add else 0.0)
        found[b, i, j] += d.beta * (rest["out"][b, i, j] if d.accumulate else 0.0)
    if args.out_scale is not None:
        low, high = (-128, 127) if d.result == "i8" else (-448, 448)
        found = np.clip(found / float(args.out_scale), low, high)
    return found if d.batch > 1 else found[0]


def test_it_is_the_formula(problem):
    few = problem.model_copy(update={"total_num_rows": min(problem.total_num_rows, 13)}).revalidated()
    few = few if few.n * few.k < 20000 else few.model_copy(update={"n": 24, "k": 200}).revalidated()
    args = inputs.make_args(few, seed=3)
    before = args.out.clone()
    if args.weight_sum is not None:
        args.weight_sum.copy_(args.weight.long().sum(-1))
    MatmulPlan.select(few).run(args)
    want = formula(few, args, before)
    rows = want.shape[-2]
    got = args.out[..., :rows, :].double().numpy()
    # the constant of the tanh form of gelu is f32
    u = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-19, "f64": 1e-13, "i32": 0.0, "f8_e4m3": 2.0**-4}.get(few.result, 0.0)
    least = {"f16": 2.0**-25, "f8_e4m3": 2.0**-10, "i8": 0.5 + 1e-9}.get(few.result, 1e-12)
    assert np.all(np.abs(got - want) <= u * np.abs(want) + least)
    assert torch.equal(*(one[..., rows:, :].double().nan_to_num(7.0) for one in (args.out, before)))


def test_it_keeps_its_bound(problem):
    plan = MatmulPlan.select(problem)
    for seed in range(2):
        args = inputs.make_args(problem, seed=seed)
        before = numerics.snapshot(problem, args)
        plan.run(args)
        assert numerics.check(problem, args, plan.sku, before=before).worst <= 1
        assert numerics.check(problem, args, plan.sku, rows=2, before=before).worst <= 1
        assert load_descriptor(problem.canonical_json()) == problem


def mma16(plan, **more):
    """The SKU of a plan with the guarantee of a tensor core kernel: steps of 16 products."""
    promise = plan.sku.precision_guarantee
    constants = dict(promise.error_model.constants) | {"u_acc": 2.0**-23, "k_step": 16.0, "u": 2.0**-24} | more
    model = promise.error_model.model_copy(update={"id": "matmul-mma16", "constants": tuple(sorted(constants.items()))})
    return plan.sku.model_copy(update={"precision_guarantee": promise.model_copy(update={"error_model": model})})


@pytest.mark.parametrize("out_dtype", ["bf16", "f32"])
@pytest.mark.parametrize("first", [0, 8000, 16368])
def test_a_lost_step_of_k_breaks_the_bound_of_tensor_cores(first, out_dtype):
    d = MatmulDescriptor(total_num_rows=4, n=64, k=16384, dtype="bf16", out_dtype=out_dtype)
    plan, args = MatmulPlan.select(d), inputs.make_args(d, 5)
    plan.run(args)
    report = numerics.check(d, args, mma16(plan))
    assert report.worst <= 1
    assert report.worst_tight <= 1
    step = slice(first, first + 16)
    lost = args.x.double() @ args.weight.double().T - args.x[:, step].double() @ args.weight[:, step].double().T
    broken = replace(args, out=lost.to(args.out.dtype))
    assert numerics.check(d, broken, mma16(plan)).worst > 1


def test_the_tight_bound_is_below_the_hard_one_and_holds_for_sums_in_f32():
    d = MatmulDescriptor(total_num_rows=8, n=32, k=4096, dtype="bf16", out_dtype="f32")
    plan, args = MatmulPlan.select(d), inputs.make_args(d, 5)
    out = torch.zeros(8, 32)
    for first in range(0, 4096, 16):
        step = slice(first, first + 16)
        out = out + (args.x[:, step].double() @ args.weight[:, step].double().T).float()
    report = numerics.check(d, replace(args, out=out), mma16(plan))
    assert 0 < report.worst < report.worst_tight <= 1


def run(d, **tensors):
    plan = MatmulPlan.select(d)
    plan.run(MatmulArgs(**tensors))
    return tensors["out"]


def test_no_products_leave_the_bias():
    d = MatmulDescriptor(total_num_rows=2, n=3, k=0, dtype="bf16", bias=True, activation="relu", out_dtype="f32")
    out = torch.full((2, 3), math.nan)
    bias = torch.tensor([1.0, -2.0, 3.0])
    empty = {"x": torch.empty(2, 0).bfloat16(), "weight": torch.empty(3, 0).bfloat16()}
    assert run(d, **empty, bias=bias, out=out).tolist() == [[1.0, 0.0, 3.0]] * 2


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (0, 0, 0)])
def test_nothing_to_write(sizes):
    rows, n, k = sizes
    d = MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype="f16")
    x, weight = torch.ones(rows, k).half(), torch.ones(n, k).half()
    assert run(d, x=x, weight=weight, out=torch.empty(rows, n).half()).numel() == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_in_its_row_and_in_its_column(value):
    d = MatmulDescriptor(total_num_rows=5, n=6, k=32, dtype="bf16")
    args = inputs.make_args(d, 1)
    args.x[2, 7] = value
    plan = MatmulPlan.select(d)
    plan.run(args)
    assert torch.equal(args.out.isfinite().all(1), torch.arange(5) != 2)
    assert numerics.check(d, args, plan.sku).worst <= 1
    args = inputs.make_args(d, 1)
    args.weight[3, 0] = value
    plan.run(args)
    assert torch.equal(args.out.isfinite().all(0), torch.arange(6) != 3)
    assert numerics.check(d, args, plan.sku).worst <= 1


@pytest.mark.parametrize("scale", [0.0, math.nan, math.inf])
def test_any_scale_acts_as_arithmetic_does(scale):
    d = MatmulDescriptor(total_num_rows=2, n=2, k=2, dtype="f8_e4m3", scaling=Scaling(kind="token"), out_dtype="f32")
    x, weight = torch.tensor([[1.0, 2.0], [0.0, 0.0]]).to(torch.float8_e4m3fn), torch.ones(2, 2).to(torch.float8_e4m3fn)
    out = torch.full((2, 2), 7.0)
    run(d, x=x, weight=weight, x_scale=torch.tensor([scale, scale]), weight_scale=torch.tensor([1.0, 2.0]), out=out)
    want = torch.tensor([[3.0], [0.0]]) * scale * torch.tensor([1.0, 2.0])
    assert torch.equal(out.nan_to_num(9.0, 8.0), want.nan_to_num(9.0, 8.0))


def test_integers_are_exact():
    d = MatmulDescriptor(total_num_rows=3, n=4, k=131_071, dtype="i8")
    x, weight = torch.full((3, 131_071), -128, dtype=torch.int8), torch.full((4, 131_071), -128, dtype=torch.int8)
    out = run(d, x=x, weight=weight, out=torch.zeros(3, 4, dtype=torch.int32))
    assert out.unique().tolist() == [128 * 128 * 131_071]
    args = inputs.make_args(d, 2)
    plan = MatmulPlan.select(d)
    plan.run(args)
    assert torch.equal(args.out.long(), args.x.long() @ args.weight.long().T)
    args.out[1, 2] += 1
    assert numerics.check(d, args, plan.sku).worst == math.inf


def test_scales_of_quantised_rows_fit_as_they_are():
    for quant, layout in (
        (Quant(), "row"),
        (Quant(scale_layout="column"), "column"),
        (Quant(scale_layout="column_padded4"),) * 2,
    ):
        layout = quant.scale_layout
        q = QuantizeDescriptor(total_num_rows=6, hidden=256, dtype="bf16", quant=quant)
        row = inputs.make_args(q, 4)
        QuantizePlan.select(q).run(row)
        d = MatmulDescriptor(
            total_num_rows=6,
            n=130,
            k=256,
            dtype="f8_e4m3",
            scaling=Scaling(kind="block", x_scale_layout=layout),
            out_dtype="f32",
        )
        weight = torch.randn(130, 256).to(torch.float8_e4m3fn)
        out = run(d, x=row.out, weight=weight, x_scale=row.scale, weight_scale=torch.ones(2, 2), out=torch.empty(6, 130))
        exact = row.x.double() @ weight.double().T
        assert bool(((out - exact).abs() <= 2.0**-4 * (row.x.double().abs() @ weight.double().abs().T)).all())


def test_a_slice_of_a_weight_gives_its_part_of_the_product():
    """Columns 70.. and elements 100.. of a larger weight, with the blocks of the larger weight."""
    big = MatmulDescriptor(total_num_rows=4, n=300, k=400, dtype="f8_e4m3", scaling=Scaling(kind="block"), out_dtype="f32")
    args = inputs.make_args(big, 2)
    args.x[:, :128] = 0.0
    args = replace(args, x_scale=torch.ones_like(args.x_scale))
    MatmulPlan.select(big).run(args)
    part = MatmulDescriptor(
        total_num_rows=4, n=230, k=300, dtype="f8_e4m3", scaling=Scaling(kind="block", block_offset=(70, 100)), out_dtype="f32"
    )
    x, weight = args.x[:, 100:], args.weight[70:, 100:]
    scales = {"x_scale": args.x_scale[:, :3], "weight_scale": args.weight_scale}
    out = run(part, x=x, weight=weight, **scales, out=torch.empty(4, 230))
    torch.testing.assert_close(out, args.out[:, 70:])


@pytest.mark.parametrize(
    ("fields", "path", "word"),
    [
        ({"out_dtype": "i32"}, "out_dtype", "i32 for i8"),
        ({"dtype": "i8", "out_dtype": "f32"}, "out_dtype", "i32 for i8"),
        ({"dtype": "f64", "out_dtype": "f32"}, "out_dtype", "f64 for f64"),
        ({"bias": True, "bias_dtype": "f64"}, "bias_dtype", "f64 for f64"),
        ({"bias_dtype": "f32"}, "bias_dtype", "null without bias"),
        ({"dtype": "i8", "bias": True}, "bias", "stored unchanged"),
        ({"dtype": "i8", "activation": "silu"}, "activation", "stored unchanged"),
        ({"dtype": "i8", "alpha": 2.0}, "alpha", "stored unchanged"),
        ({"dtype": "i8", "accumulate": True}, "accumulate", "stored unchanged"),
        ({"dtype": "i8", "k": 131_072}, "k", "at most 131071"),
        ({"beta": 0.5}, "beta", "1 without add"),
        ({"scaling": Scaling(kind="token")}, "scaling", "null for bf16"),
        ({"dtype": "i8", "scaling": Scaling(kind="block")}, "scaling.kind", "tensor or token"),
        ({"sm_limit": 0}, "sm_limit", "greater than or equal to 1"),
        ({"batch": 0}, "batch", "greater than or equal to 1"),
        ({"weight_layout": "kk"}, "weight_layout", "nk"),
    ],
)
def test_fields_that_have_no_meaning_are_refused(fields, path, word):
    with pytest.raises(DescriptorError) as caught:
        MatmulDescriptor(**({"total_num_rows": 3, "n": 8, "k": 4, "dtype": "bf16"} | fields))
    assert caught.value.issues[0].argument == path
    assert word in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "path", "word"),
    [
        ({"kind": "block", "weight_kind": "token"}, "weight_kind", "null with block"),
        ({"kind": "token", "weight_starts": (4,)}, "weight_starts", "a single scale"),
        ({"kind": "tensor", "weight_starts": (4, 4)}, "weight_starts", "rising"),
        ({"kind": "tensor", "block_offset": (1, 0)}, "block_offset", "only block scales"),
        ({"kind": "block", "block_offset": (0, 128)}, "block_offset", "below 128"),
        ({"kind": "token", "x_scale_layout": "column"}, "x_scale_layout", "row"),
        ({"kind": "mx32"}, "x_scale_dtype", "f8_e8m0 with mx32"),
        ({"kind": "group"}, "kind", "tensor"),
    ],
)
def test_scales_that_have_no_meaning_are_refused(fields, path, word):
    with pytest.raises(DescriptorError) as caught:
        Scaling(**fields)
    assert caught.value.issues[0].argument == path
    assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("x", lambda t: t[:, :-1], "OPF-A011"),
        ("x", lambda t: t.float(), "OPF-A010"),
        ("weight", lambda t: t.T.contiguous().T, "OPF-A021"),
        ("weight", lambda t: None, "OPF-A002"),
        ("out", lambda t: t[:1].expand(4, 8), "OPF-A022"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_runs(name, change, code):
    d = MatmulDescriptor(total_num_rows=4, n=8, k=16, dtype="bf16")
    args = inputs.make_args(d, 1)
    with pytest.raises(OpfacadeError) as caught:
        MatmulPlan.select(d).run(replace(args, **{name: change(getattr(args, name))}))
    assert caught.value.issues[0].argument == name
    assert caught.value.issues[0].code == code


def test_out_may_not_be_an_input():
    d = MatmulDescriptor(total_num_rows=4, n=4, k=4, dtype="bf16")
    args = inputs.make_args(d, 1)
    with pytest.raises(OpfacadeError, match="OPF-A040"):
        MatmulPlan.select(d).run(replace(args, out=args.x))


def test_rows_may_lie_anywhere_and_weight_may_be_shared():
    d = MatmulDescriptor(total_num_rows=4, n=5, k=7, batch=3, dtype="f16")
    args = inputs.make_args(d, 1)
    MatmulPlan.select(d).run(args)
    far = {name: torch.zeros(3, 9, 31).half()[:, 1 : 1 + getattr(args, name).shape[1], 3 : 3 + getattr(args, name).shape[2]]
           for name in ("x", "weight", "out")}  # fmt: skip
    far["x"].copy_(args.x)
    far["weight"].copy_(args.weight)
    MatmulPlan.select(d).run(MatmulArgs(**far))
    assert torch.equal(far["out"], args.out)
    shared = replace(args, weight=args.weight[:1].expand(3, 5, 7), out=torch.empty_like(args.out))
    MatmulPlan.select(d).run(shared)
    assert torch.equal(shared.out[0], args.out[0])
    assert not torch.equal(shared.out[1], args.out[1])


def test_the_named_plan():
    assert issubclass(MatmulPlan, Plan)
