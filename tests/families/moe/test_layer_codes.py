"""Layers whose experts have weights of a few bits: the numbers that the codes represent, refusals, and kernels."""

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.errors import DescriptorError, UnsupportedError
from opfacade.plans.matmul import Weight
from opfacade.plans.moe import FusedMoeDescriptor
from opfacade.testing import inputs, numerics
from tests import emulator
from tests.families.moe.layers import by_hand, drawn
from tests.support.assemblers import any_assembler

MXFP4 = Weight(dtype="e2m1", group=32, scale_dtype="f8_e8m0")
AWQ = Weight(dtype="uint4", group=32, zero="int", dequantise="rounded")
NVFP4 = Weight(dtype="e2m1", group=16, scale_dtype="f8_e4m3", global_scale=True)
SIZES = {"total_num_rows": 6, "experts": 4, "top_k": 2, "hidden": 96, "width": 64, "dtype": "bf16"}
LAYERS = {
    "mxfp4": FusedMoeDescriptor(
        **SIZES, weight_format=MXFP4, halves="interleaved", limit=7.0, alpha=1.702, beta=1.0, bias=True
    ),
    "awq": FusedMoeDescriptor(**SIZES, weight_format=AWQ),
    "nvfp4": FusedMoeDescriptor(**SIZES, weight_format=NVFP4, shared_width=16, add=True),
    "e4m3 at the input": FusedMoeDescriptor(
        **SIZES, weight_format=Weight(dtype="f8_e4m3", scale_dtype="f32"), weights_at="input", first_expert=1
    ),
}


@pytest.fixture(autouse=True)
def _any_assembler():
    with any_assembler():
        yield


def test_a_layer_computes_with_the_numbers_of_its_codes():
    """The reference agrees with a loop over rows and slots."""
    d = LAYERS["mxfp4"]
    args = drawn(d)
    Plan.select(d, Preference(backend="reference"), Target.parse("cpu")).run(args)
    want = by_hand(d, args)
    assert (args.out.double() - want).abs().max() <= 0.03 * want.abs().max()


@pytest.mark.parametrize("name", LAYERS)
def test_the_reference_keeps_its_bound(name):
    d = LAYERS[name]
    args = inputs.make_args(d, 3)
    plan = Plan.select(d, Preference(backend="reference"), Target.parse("cpu"))
    plan.run(args)
    assert numerics.check(d, args, plan.sku).worst <= 1


def test_a_rounded_weight_gives_the_bits_of_the_same_weight_in_bf16():
    """A layer with codes and zero points, rounded once, gives the bits of a layer with the rounded weights."""
    d = LAYERS["awq"]
    args, plain = inputs.make_args(d, 5), FusedMoeDescriptor(**SIZES)
    weights = {}
    for name in ("up", "down"):
        codes = getattr(args, name)
        numbers = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).float()
        zero, scale = (getattr(args, f"{name}_{part}").float().repeat_interleave(32, -1) for part in ("zero", "scale"))
        weights[name] = ((numbers - zero) * scale).bfloat16()
    other = inputs.make_args(plain, 5)
    other = type(other)(**{name: getattr(other, name) for name in type(other).__slots__} | weights | {
        name: getattr(args, name) for name in ("x", "ids", "weights")
    })  # fmt: skip
    for one, given in ((d, args), (plain, other)):
        Plan.select(one, Preference(backend="reference"), Target.parse("cpu")).run(given)
    assert torch.equal(args.out, other.out)


@emulator.needed
@pytest.mark.parametrize("name", LAYERS)
def test_the_kernels_keep_the_error_bound(name):
    d = LAYERS[name]
    args, subject = inputs.make_args(d, 3), emulator.subject(d)
    before = numerics.snapshot(d, args)
    subject.run(args)
    assert numerics.check(d, args, subject.plan.sku, before=before).worst <= 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_a_layer_has_kernels_from_sm_80_on(arch):
    for d in (LAYERS["mxfp4"], LAYERS["awq"], FusedMoeDescriptor(**SIZES)):
        assert Plan.select(d, Preference(backend="cuda"), Target.parse(arch)).sku.backend == "cuda"


REFUSED = {
    "scaling": ({"weight_format": MXFP4, "scaling": "token"}, "scaling"),
    "weight_layout": ({"weight_format": MXFP4, "weight_layout": "kn"}, "weight_layout"),
    "order": ({"weight_format": Weight(dtype="int4", num_groups=2)}, "num_groups"),
    "offset": ({"weight_format": Weight(dtype="int4", group=32, group_offset=8)}, "group_offset"),
    "f16": ({"weight_format": AWQ, "dtype": "f16"}, "dequantise"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_contradictory_fields_of_codes_are_refused(name):
    fields, words = REFUSED[name]
    with pytest.raises(DescriptorError, match=words):
        FusedMoeDescriptor(**SIZES | fields)


@pytest.mark.parametrize(("unserved", "field", "got", "allowed"), [
    ({"weight_format": Weight(dtype="int4")}, "weight_format.dequantise", "exact", "rounded"),
    ({"dtype": "f32"}, "dtype", "f32", "f16"),
], ids=["exact", "f32"])  # fmt: skip
def test_a_refused_step_names_the_reason_of_the_nearest_kernel(unserved, field, got, allowed):
    with pytest.raises(UnsupportedError) as caught:
        Plan.select(FusedMoeDescriptor(**SIZES | unserved), Preference(backend="cuda"), Target.parse("sm_90a"))
    assert f"up.{field}={got} (allowed: {allowed}" in str(caught.value)
    assert "up.layout" not in str(caught.value)


def test_validation_level_full_refuses_nan_and_infinite_scales():
    d = LAYERS["mxfp4"]
    args = inputs.make_args(d, 3)
    assert d.wrong_values("up_scale", args) is None or not bool(d.wrong_values("up_scale", args)[0].any())
    plain = LAYERS["awq"]
    given = inputs.make_args(plain, 3)
    given.down_scale[0, 3, 1] = 0
    found = plain.wrong_values("down_scale", given)
    assert found is not None
    assert found[0].nonzero().tolist() == [[0, 3, 1]]
