"""Gated activations that return quantised values and scales: the formula, the layout of the scales, and the error bound of the
kernels in every layout."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from opfacade import Plan, Preference, Target, load_descriptor
from opfacade.core.dtypes import torch_dtype
from opfacade.errors import ArgumentError, DescriptorError, UnsupportedError
from opfacade.plans.activation import GatedActivationArgs, GatedActivationDescriptor, Quant
from opfacade.testing import inputs, numerics
from opfacade.testing.families.elementwise import differs
from tests import emulator

SM_90A = Target.parse("sm_90a")
LARGEST = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0, "i8": 127.0}
HALF_STEP = {"f8_e4m3": 2.0**-4, "f8_e5m2": 2.0**-3, "i8": 0.0}
POWERS = {"scale_dtype": "f8_e8m0"}


def problem(quant, **fields):
    fields = {"total_num_rows": 6, "width": 256, "dtype": "bf16"} | fields
    return GatedActivationDescriptor(quant=Quant(**quant), **fields)


FORMS = {
    "group": problem({}),
    "column": problem({"scale_layout": "column", "group": 64, "dtype": "f8_e5m2"}, gate_first=False),
    "padded": problem({"scale_layout": "column_padded4", **POWERS}, activation="gelu"),
    "pairs": problem({"group": 32, **POWERS}, activation="swiglu_oai", interleaved=True),
    "pairs_f32": problem({"group": 128}, interleaved=True, gate_first=False, dtype="f32"),
    "token": problem({"scale": "token", "dtype": "i8"}, width=195, dtype="f16"),
    "token_powers": problem({"scale": "token", **POWERS}, gated=False, activation="relu2", width=1100),
    "tensor": problem({"scale": "tensor"}, width=195),
    "tensor_powers": problem({"scale": "tensor", "dtype": "f8_e5m2", **POWERS}, activation="gelu", dtype="f16"),
    "tensor_pairs": problem({"scale": "tensor", "dtype": "i8"}, activation="swiglu_oai", interleaved=True, dtype="f32"),
    "tensor_valid": problem({"scale": "tensor"}, gate_first=False, num_valid=True),
    "valid": problem({"group": 16}, num_valid=True, limit=1.5, alpha=0.7),
    "wide": problem({"group": 128}, width=4608, total_num_rows=2),
}
FUNCTIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * np.array([math.erfc(-float(one) / math.sqrt(2)) / 2 for one in x.ravel()]).reshape(x.shape),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "swiglu_oai": lambda x: x / (1 + np.exp(-np.longdouble(np.float32(1.702)) * x)),
}


def wide(tensor):
    return tensor.double().numpy().astype(np.longdouble)


def formula(d, x):
    """The activation before quantisation."""
    x = wide(x)
    if not d.gated:
        return FUNCTIONS[d.activation](x)
    first, second = (x[:, 0::2], x[:, 1::2]) if d.interleaved else (x[:, : d.width], x[:, d.width :])
    gate, up = (first, second) if d.gate_first else (second, first)
    limit = 7.0 if d.activation == "swiglu_oai" and d.limit is None else d.limit
    if limit is not None:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    if d.alpha is not None:
        return gate / (1 + np.exp(-np.longdouble(np.float32(d.alpha)) * gate)) * up
    return FUNCTIONS[d.activation](gate) * (up + 1 if d.activation == "swiglu_oai" else up)


def scales_of(d, y):
    """Scales with one row per row of y, or with a single row for scale="tensor"."""
    count = d.width // d.quant.group if d.quant.scale == "group" else 1
    found = (
        np.maximum(np.abs(y).reshape(1 if d.quant.scale == "tensor" else y.shape[0], count, -1).max(-1), 1e-10)
        / LARGEST[d.quant.dtype]
    )
    return np.exp2(np.ceil(np.log2(found))) if d.quant.scale_dtype == "f8_e8m0" else found


@pytest.mark.parametrize("name", FORMS)
def test_the_output_is_the_formula_divided_by_the_scale_of_its_group(name):
    d = FORMS[name]
    args = inputs.make_args(d, seed=4)
    Plan.select(d).run(args)
    rows = d.total_num_rows if args.num_valid is None else int(args.num_valid[0])
    y = formula(d, args.x[:rows])
    want = scales_of(d, y)
    got = args.scale if d.quant.scale_layout == "row" else args.scale.t()
    assert np.allclose(wide(got[:rows].float()).reshape(want.shape), want, rtol=1e-6, atol=0)
    quotient = y / np.repeat(want, d.width // want.shape[1], axis=1)
    most = LARGEST[d.quant.dtype]
    error = np.abs(wide(args.out[:rows].float()) - np.clip(quotient, -most, most))
    step = 0.5 if d.quant.dtype == "i8" else np.maximum(HALF_STEP[d.quant.dtype] * np.abs(quotient), 2.0**-10)
    assert (error <= step * 1.001 + 1e-5).all()
    if d.quant.scale_layout == "column_padded4":
        assert args.scale.shape == (d.width // d.quant.group, 8)
        assert bool(args.scale[:, rows:].isnan().all())


@pytest.mark.parametrize("name", FORMS)
def test_a_serialised_descriptor_is_equal_and_its_plan_keeps_the_error_bound(name):
    d = FORMS[name]
    again = load_descriptor(d.canonical_json())
    assert again == d
    assert again.folded() == d.folded()
    args, plan = inputs.make_args(d, seed=5), Plan.select(d)
    before = numerics.snapshot(d, args)
    plan.run(args)
    assert numerics.check(d, args, plan.sku, before=before).worst <= 1


def test_the_result_is_rounded_once():
    """Rounding to bf16 before the quantisation would give another number."""
    d = problem({"scale": "token"}, total_num_rows=64, dtype="f16")
    args = inputs.make_args(d, seed=6)
    Plan.select(d).run(args)
    y, scale = formula(d, args.x), wide(args.scale)[:, None]
    exact = torch.from_numpy((y / scale).astype(np.float64)).to(torch.float8_e4m3fn).float()
    twice = torch.from_numpy(y.astype(np.float64)).half().double() / torch.from_numpy(scale.astype(np.float64))
    assert bool((args.out.float() != exact).float().mean() < 1e-3)
    assert not torch.equal(exact, twice.to(torch.float8_e4m3fn).float())


def held(subject, args):
    before = numerics.snapshot(subject.descriptor, args)
    subject.run(args)
    found = numerics.check(subject.descriptor, args, subject.plan.sku, before=before)
    assert found.worst <= 1, found
    return args.out.clone(), args.scale.clone()


def apart(tensor):
    """A copy whose row stride is larger than the row length."""
    room = torch.empty(tensor.shape[0], tensor.shape[1] + 24, dtype=tensor.dtype)
    return room[:, 8 : 8 + tensor.shape[1]].copy_(tensor)


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_the_kernel_keeps_its_bound_and_its_bits_for_any_strides(name):
    d = FORMS[name]
    subject, args = emulator.subject(d), inputs.make_args(d, 3)
    want = held(subject, args)
    layouts = [lambda x: apart(x)] + ([] if d.interleaved else [lambda x: x.t().contiguous().t()])
    for change in layouts:
        got = held(subject, replace(args, x=change(args.x), out=change(args.out.clone()), scale=args.scale.clone()))
        assert not any(bool(differs(one, other.contiguous()).any()) for one, other in zip(want, got, strict=True))


@emulator.needed
@pytest.mark.parametrize("name", ["group", "pairs", "token", "wide"])
def test_a_row_has_its_bits_in_any_batch(name):
    d = FORMS[name]
    alone = d.model_copy(update={"total_num_rows": 1}).revalidated()
    args = inputs.make_args(d, 3)
    out, scale = held(emulator.subject(d), args)
    one = GatedActivationArgs(x=args.x[1:2].clone(), out=torch.zeros_like(args.out[:1]), scale=torch.zeros_like(args.scale[:1]))
    assert emulator.subject(alone).plan.sku.id == emulator.subject(d).plan.sku.id
    got = held(emulator.subject(alone), one)
    assert not bool(differs(got[0], out[1:2]).any())
    assert not bool(differs(got[1], scale[1:2]).any())


@emulator.needed
def test_scales_past_the_valid_rows_are_not_written():
    d = FORMS["valid"]
    args = inputs.make_args(d, 3, lengths=inputs.DrawnLengths(valid=4))
    held(emulator.subject(d), args)
    assert bool(args.scale[:4].isfinite().all())
    assert bool(args.scale[4:].isnan().all())


@pytest.mark.parametrize(
    ("make", "path", "word"),
    [
        (lambda: problem({"group": 100}), "quant.group", "a divisor of width=256"),
        (lambda: problem({"scale": "block"}), "quant.scale", "static, tensor, token or group"),
        (lambda: problem({"scale": "tensor"}, total_num_rows=0), "total_num_rows", "1 or more"),
        (lambda: problem({}, in_place=True), "in_place", "False with quant"),
        (lambda: problem({"scale": "token", "scale_layout": "column"}), "scale_layout", "have a layout"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(make, path, word):
    with pytest.raises(DescriptorError, match=word) as caught:
        make()
    assert caught.value.issues[0].argument == path


def test_a_scale_of_the_wrong_layout_or_dtype_is_refused():
    d = FORMS["column"]
    args, plan = inputs.make_args(d, seed=0), Plan.select(d)
    for scale in (torch.empty(6, 4), torch.empty(4, 6).double(), torch.empty(4, 6).to(torch_dtype("f8_e8m0"))):
        with pytest.raises(ArgumentError, match="scale"):
            plan.run(replace(args, scale=scale))


@emulator.needed
@pytest.mark.parametrize(
    "quant", [{"scale": "none"}, {"scale": "static"}, {"scale": "token"}, {"group": 32}, {"scale": "tensor"}]
)
@pytest.mark.parametrize("interleaved", [False, True])
def test_f32_rows_have_a_kernel_with_every_scale(quant, interleaved):
    d = problem(quant, dtype="f32", width=64, interleaved=interleaved)
    subject, args = emulator.subject(d), inputs.make_args(d, 3)
    before = numerics.snapshot(d, args)
    subject.run(args)
    assert numerics.check(d, args, subject.plan.sku, before=before).worst <= 1


def test_exactly_one_cuda_kernel_accepts_each_kind_of_scale():
    for quant, own in (({}, "rows"), ({"scale": "static"}, "loops"), ({"scale": "tensor"}, "scaled")):
        explained = Plan.select(problem(quant), Preference(backend="cuda"), SM_90A)
        assert explained.sku.impl == own
    with pytest.raises(UnsupportedError, match="sm_89 and later"):
        Plan.select(problem({}), Preference(backend="cuda"), Target.parse("sm_80"))


@pytest.mark.parametrize("name", ["group", "pairs", "padded", "token", "wide", "tensor", "tensor_pairs"])
def test_each_form_compiles_without_spills(name):
    plan = Plan.select(FORMS[name], Preference(backend="cuda"), SM_90A)
    plan.compile()
    assert plan.cache_state == "shared"


@pytest.mark.gpu
@pytest.mark.parametrize(
    "quant", [{}, {"scale_layout": "column_padded4", **POWERS}, {"scale": "token", "dtype": "i8"}, {"scale": "tensor"}]
)
@pytest.mark.parametrize(
    "form", [{}, {"interleaved": True, "activation": "swiglu_oai"}, {"gated": False, "activation": "gelu"}]
)
def test_large_rows_keep_the_error_bound_on_a_gpu(form, quant):
    for rows, width in ((1, 14336), (257, 2048), (64, 384)):
        d = problem(quant, total_num_rows=rows, width=width, **form)
        plan, args = Plan.select(d, Preference(backend="cuda")), inputs.make_args(d, 2, "cuda")
        before = numerics.snapshot(d, args)
        plan.run(args)
        assert numerics.check(d, args, plan.sku, before=before).worst <= 1
