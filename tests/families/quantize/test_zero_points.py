"""Scales with zero points against the formula in numpy and the i8 rows of vLLM, on the reference and the kernels, in both
directions; and refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from opfacade import Plan, Preference, Target, explain, load_descriptor
from opfacade.core.descriptor import operands_of
from opfacade.errors import DescriptorError
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.plans.norm import NormDescriptor
from opfacade.plans.quantize import DequantizeArgs, DequantizeDescriptor, Quant, QuantizeArgs, QuantizeDescriptor
from opfacade.testing import inputs, numerics
from tests import emulator
from tests.families.norm.test_norm_kernel import apart

F, SIZES = np.float32, {"total_num_rows": 5, "hidden": 24, "dtype": "f32"}


def quant(scale="token", **more):
    return Quant(dtype="i8", zero=True, scale=scale, **({"group": 8} if scale == "group" else {}), **more)


FORMS = {
    "static": QuantizeDescriptor(**SIZES, quant=quant("static")),
    "tensor": QuantizeDescriptor(**SIZES, quant=quant("tensor")),
    "group": QuantizeDescriptor(**SIZES, quant=quant("group")),
    "token": QuantizeDescriptor(total_num_rows=5, hidden=333, dtype="bf16", quant=quant(most=0.75), num_valid=True),
    "back": DequantizeDescriptor(**SIZES, quant=quant("group")),
    "back, valid": DequantizeDescriptor(total_num_rows=5, hidden=40, dtype="f16", quant=quant(), num_valid=True),
}


def by_hand(part, given):
    """The scale, zero point and elements of one group; numpy rounds each step to f32."""
    with np.errstate(all="ignore"):
        low, high = min(part.min(), F(0)), max(part.max(), F(0))
        if given.most is not None:
            low, high = max(low, F(-given.most)), min(high, F(given.most))
        scale = F(max(high / F(2) - low / F(2), F(given.least / 2)) / F(127.5))
        zero = np.rint(F(-128) - F(low / scale))
        stored = np.clip(np.rint(part / scale).astype(np.float64) + zero, -128, 127)
    return scale, int(zero), stored.astype(np.int8)


def run(problem, x):
    """Returns out, scale and zero."""
    shape = {"tensor": (1,), "token": x.shape[:1], "group": (x.shape[0], x.shape[1] // 8)}[problem.quant.scale]
    found = torch.zeros(x.shape, dtype=torch.int8), torch.zeros(shape), torch.zeros(shape, dtype=torch.int32)
    Plan.select(problem, Preference(backend="reference")).run(QuantizeArgs(x=x, out=found[0], scale=found[1], zero=found[2]))
    return found


def rows_of(x, scale):
    return {"tensor": [x], "token": list(x), "group": list(x.reshape(-1, 8))}[scale]


@pytest.mark.parametrize("scale", ["tensor", "token", "group"])
@pytest.mark.parametrize("most", [None, 1.25])
def test_scale_zero_point_and_elements_equal_the_formula(scale, most):
    draw = torch.Generator().manual_seed(3)
    for shift, factor in ((0, 1), (3, 0.1), (-7, 2), (0, 3e38), (0, 1e-39), (1e4, 1e-3)):
        x = (torch.rand((5, 24), generator=draw) * 2 - 1) * factor + shift
        x[2] = 0.0
        problem = QuantizeDescriptor(**SIZES, quant=quant(scale, most=most))
        out, scales, zeros = run(problem, x)
        want = [by_hand(part, problem.quant) for part in rows_of(x.numpy(), scale)]
        assert scales.flatten().tolist() == [float(one) for one, _, _ in want]
        assert zeros.flatten().tolist() == [one for _, one, _ in want]
        assert np.array_equal(out.numpy().flatten(), np.concatenate([one.flatten() for _, _, one in want]))


def test_rows_with_both_signs_equal_those_of_vllm():
    """vLLM computes scale = (max - min) / 255 and azp = rint(-128 - min / scale) in f32."""
    x = torch.randn((64, 333), generator=torch.Generator().manual_seed(1)) + 0.5
    out, scale, zero = run(QuantizeDescriptor(total_num_rows=64, hidden=333, dtype="f32", quant=quant()), x)
    low, high = x.amin(1), x.amax(1)
    wanted = (high - low) / 255
    assert torch.equal(scale, wanted)
    assert torch.equal(zero, torch.round(-128 - low / wanted).int())
    assert torch.equal(out, (torch.round(x / wanted[:, None]) + zero[:, None]).clamp(-128, 127).to(torch.int8))


def test_dequantised_values_differ_by_at_most_half_a_step_and_zero_is_exact():
    x = torch.rand((16, 200), generator=torch.Generator().manual_seed(2)) * 3 - 1
    x[:, 7] = 0.0
    sizes = {"total_num_rows": 16, "hidden": 200, "dtype": "f32", "quant": quant()}
    out, scale, zero = run(QuantizeDescriptor(**sizes), x)
    back = torch.full_like(x, 77)
    Plan.select(DequantizeDescriptor(**sizes)).run(DequantizeArgs(x=out, scale=scale, zero=zero, out=back))
    assert bool(((back - x).abs() <= 0.501 * scale[:, None] + 0.501 * scale[:, None] * (x == x.amax(1, True))).all())
    assert bool((back[:, 7] == 0).all())
    assert int(out.min()) == -128
    assert int(out.max()) == 127


def test_a_row_with_nan_is_zero_and_a_row_with_an_infinity_has_an_infinite_scale():
    x = torch.ones((5, 24))
    x[0, 3], x[1, 3], x[2, 3] = float("nan"), float("inf"), -float("inf")
    out, scale, zero = run(QuantizeDescriptor(**SIZES, quant=quant()), x)
    assert (bool(scale[0].isnan()), zero[0].item(), out[0].tolist()) == (True, 0, [0] * 24)
    assert (scale[1].item(), zero[1].item(), out[1, 0].item(), out[1, 3].item()) == (float("inf"), -128, -128, 0)
    assert (scale[2].item(), zero[2].item(), out[2].tolist()) == (float("inf"), 0, [0] * 24)
    assert out[3].tolist() == [127] * 24


def test_a_static_zero_point_beyond_i8_is_added_before_saturation():
    problem = QuantizeDescriptor(total_num_rows=1, hidden=4, dtype="f32", quant=quant("static"))
    out = torch.zeros((1, 4), dtype=torch.int8)
    args = QuantizeArgs(
        x=torch.tensor([[1000.0, 1001.0, 999.0, 0.5]]), out=out, scale=torch.ones(1), zero=torch.tensor([-1000]).int()
    )
    Plan.select(problem).run(args)
    assert out.tolist() == [[0, 1, -1, -128]]


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_a_kernel_has_the_bits_of_the_reference(name):
    problem = FORMS[name]
    subject, args = emulator.subject(problem), inputs.make_args(problem, 3)
    names = [one for one in operands_of(problem) if one != "num_valid"]
    for call in (args, replace(args, **{one: apart(getattr(args, one)) for one in names})):
        before = numerics.snapshot(problem, call)
        subject.run(call)
        assert numerics.check(problem, call, subject.plan.sku, before=before).worst <= 0
    assert load_descriptor(problem.canonical_json()) == problem


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "f8_e4m3"},
        {"scale": "none"},
        {"scale": "block"},
        {"scale": "group", "scale_layout": "column"},
        {"scale": "token", "scale_dtype": "f8_e8m0"},
    ],
)
def test_fields_that_do_not_support_zero_points_are_refused(fields):
    with pytest.raises(DescriptorError, match="with zero points") as caught:
        Quant(**{"dtype": "i8", "zero": True, "scale": "token"} | fields)
    assert str(caught.value).count("with zero points") == 1


def test_norms_and_activations_refuse_zero_points():
    for kind, fields in ((NormDescriptor, {"kind": "rms", "hidden": 64}), (GatedActivationDescriptor, {"width": 64})):
        with pytest.raises(DescriptorError, match=r"quant.zero expected False"):
            kind(total_num_rows=3, dtype="bf16", quant=quant(), **fields)


def test_a_quant_without_zero_points_is_serialised_as_before():
    assert "zero" not in Quant(dtype="i8", scale="token").canonical_json()


def test_one_zero_point_for_a_large_tensor_has_a_kernel():
    for rows in (64, 8192):
        problem = QuantizeDescriptor(total_num_rows=rows, hidden=7168, dtype="bf16", quant=quant("tensor"))
        found = explain(problem, Preference(backend="cuda"), Target.parse("sm_90a"))
        assert found.chosen is not None
        (scaled,) = [option for option in found.options if option.name == "cuda/scaled"]
        assert [reason.field for reason in scaled.reasons] == ["quant.zero"]
