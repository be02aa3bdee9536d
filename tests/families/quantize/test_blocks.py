"""Quantisation of a matrix by blocks and back: each block from its own elements, blocks at the edges, layouts, refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from opfacade import Plan, Preference, Target, load_descriptor
from opfacade.core.dtypes import torch_dtype
from opfacade.errors import ArgumentError, DescriptorError, UnsupportedError
from opfacade.plans.quantize import DequantizeArgs, DequantizeDescriptor, Quant, QuantizeArgs, QuantizeDescriptor
from opfacade.testing import inputs, numerics
from opfacade.testing.families.elementwise import differs
from tests import emulator
from tests.families.quantize.test_reference import LARGEST, power_above, stored

SM_90A = Target.parse("sm_90a")


def made(kind=QuantizeDescriptor, rows=200, hidden=320, wide="bf16", **quant):
    return kind(total_num_rows=rows, hidden=hidden, dtype=wide, quant=Quant(scale="block", **quant))


FORMS = {
    "weights": made(),
    "whole": made(rows=128, hidden=256, wide="f16"),
    "latent": made(rows=64, hidden=192, block=(48, 64), wide="f32"),
    "powers": made(rows=70, hidden=90, block=(32, 64), scale_dtype="f8_e8m0", dtype="f8_e5m2"),
    "bytes": made(rows=9, hidden=33, block=(4, 10), dtype="i8"),
    "one": made(rows=1, hidden=1),
    "lines": made(rows=3, hidden=300, block=(1, 128)),
    "empty": made(rows=0),
}
BACK = {
    name: DequantizeDescriptor(**(one.model_dump(exclude={"op", "quant"}) | {"quant": one.quant}))
    for name, one in FORMS.items()
}
EVERY = FORMS | {f"back_{name}": one for name, one in BACK.items()}


def scales_of(x, quant):
    """The scale of each block, computed from slices of x."""
    down, right = quant.block
    found = np.empty((-(-x.shape[0] // down), -(-x.shape[1] // right)), np.float32)
    for i in range(found.shape[0]):
        for j in range(found.shape[1]):
            most = np.abs(x[i * down : (i + 1) * down, j * right : (j + 1) * right]).max()
            scale = np.float32(max(most, np.float32(quant.least)) / np.float32(LARGEST[quant.dtype]))
            found[i, j] = power_above(scale) if quant.scale_dtype == "f8_e8m0" else scale
    return found


@pytest.mark.parametrize("name", [name for name in FORMS if name != "empty"])
def test_each_element_is_divided_by_the_scale_of_its_block(name):
    d = FORMS[name]
    args = inputs.make_args(d, seed=7)
    Plan.select(d).run(args)
    x = args.x.float().numpy()
    want = scales_of(x, d.quant)
    assert np.array_equal(args.scale.float().numpy(), want)
    down, right = d.quant.block
    for row, column in {
        (0, 0),
        (0, x.shape[1] - 1),
        (x.shape[0] - 1, 0),
        (x.shape[0] - 1, x.shape[1] - 1),
        (x.shape[0] // 2, 0),
    }:
        assert float(args.out[row, column].float()) == stored(x[row, column], want[row // down, column // right], d.quant)


@pytest.mark.parametrize("name", [name for name in FORMS if name != "empty"])
def test_dequantisation_is_the_product_with_the_scale_rounded_once(name):
    d = BACK[name]
    args = inputs.make_args(d, seed=8)
    Plan.select(d).run(args)
    down, right = d.quant.block
    scale = args.scale.float().repeat_interleave(down, 0)[: d.total_num_rows].repeat_interleave(right, 1)[:, : d.hidden]
    want = (args.x.float() * scale).to(args.out.dtype)
    assert not bool(differs(args.out, want).any())


@pytest.mark.parametrize("name", EVERY)
def test_each_form_is_exact_and_survives_serialisation(name):
    d = EVERY[name]
    plan, args = Plan.select(d), inputs.make_args(d, seed=1)
    assert plan.sku.precision_guarantee.error_model.id == "exact"
    plan.run(args)
    assert numerics.check(d, args, plan.sku).worst <= 0
    assert load_descriptor(d.canonical_json()) == d


def test_the_default_block_is_not_serialised():
    assert "block" not in Quant().model_dump_json()
    assert "block" not in Quant(scale="block").model_dump(mode="json")
    assert '"block":[64,32]' in made(block=(64, 32)).canonical_json().replace(" ", "")


def test_nan_affects_only_its_block():
    d = made(rows=8, hidden=8, wide="f32", block=(4, 4))
    x = torch.ones(8, 8)
    x[1, 6] = torch.nan
    args = QuantizeArgs(x=x, out=torch.zeros(8, 8).to(torch.float8_e4m3fn), scale=torch.zeros(2, 2))
    for subject in (Plan.select(d), *([emulator.subject(d)] if emulator.compiler() else [])):
        subject.run(args)
        assert args.scale.isnan().tolist() == [[False, True], [False, False]]
        assert bool(args.out.float().isnan()[:4, 4:].all())
        assert bool((args.out.float()[4:] == 448).all())


LAYOUTS = {
    "dense": lambda x: x,
    "apart": lambda x: torch.cat([x.view(torch.int8), x.view(torch.int8)], 1).view(x.dtype)[:, : x.shape[1]],
    "transposed": lambda x: x.t().contiguous().t(),
    "unaligned": lambda x: torch.cat([x[:, :1].view(torch.int8), x.view(torch.int8)], 1).view(x.dtype)[:, 1:],
}


@emulator.needed
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", EVERY)
def test_a_kernel_has_the_bits_of_the_reference_on_every_layout(name, layout):
    d = EVERY[name]
    subject, args = emulator.subject(d), inputs.make_args(d, 3)
    call = replace(args, x=LAYOUTS[layout](args.x), out=LAYOUTS[layout](args.out))
    subject.run(call)
    assert numerics.check(d, call, subject.plan.sku).worst <= 0


@emulator.needed
def test_bits_of_a_block_do_not_depend_on_other_blocks():
    d, alone = FORMS["weights"], made(rows=128, hidden=128)
    args = inputs.make_args(d, 3)
    emulator.subject(d).run(args)
    one = QuantizeArgs(x=args.x[:128, 128:256], out=torch.zeros(128, 128).to(torch.float8_e4m3fn), scale=torch.zeros(1, 1))
    emulator.subject(alone).run(one)
    assert float(one.scale) == float(args.scale[0, 1])
    assert not bool(differs(one.out, args.out[:128, 128:256].contiguous()).any())


@emulator.needed
def test_nothing_is_written_outside_the_matrix():
    d = FORMS["weights"]
    args = inputs.make_args(d, 3)
    room = torch.full((210, 340), 7.0).to(torch.float8_e4m3fn)
    emulator.subject(d).run(replace(args, out=room[3:203, 8:328]))
    left = room.float()
    left[3:203, 8:328] = 7
    assert bool((left == 7).all())


@pytest.mark.parametrize(
    ("make", "path", "word"),
    [
        (lambda: Quant(scale="group", block=(64, 64)), "block", "only block scales use it"),
        (lambda: Quant(scale="block", block=(0, 64)), "block.0", "greater than or equal to 1"),
        (lambda: Quant(scale="block", scale_layout="column"), "scale_layout", "have a layout"),
    ],
)  # fmt: skip
def test_contradictory_fields_are_refused(make, path, word):
    with pytest.raises(DescriptorError, match=word) as caught:
        make()
    assert caught.value.issues[0].argument == path


def test_scales_of_a_wrong_shape_are_refused_and_a_block_that_exceeds_the_registers_is_declined():
    d = BACK["weights"]
    args = inputs.make_args(d, seed=0)
    with pytest.raises(ArgumentError, match="scale"):
        Plan.select(d).run(DequantizeArgs(x=args.x, scale=torch.ones(1, 2), out=args.out))
    with pytest.raises(UnsupportedError, match=r"quant\.block"):
        Plan.select(made(block=(256, 256)), Preference(backend="cuda"), SM_90A)
    with pytest.raises(UnsupportedError, match="sm_89 and later"):
        Plan.select(d, Preference(backend="cuda"), Target.parse("sm_80"))


@pytest.mark.parametrize("wide", ["bf16", "f32"])
@pytest.mark.parametrize("kind", [QuantizeDescriptor, DequantizeDescriptor])
def test_each_kind_compiles_without_spills(kind, wide):
    for more in ({}, {"block": (128, 256)}):
        plan = Plan.select(made(kind, wide=wide, **more), Preference(backend="cuda"), SM_90A)
        plan.compile()
        assert plan.cache_state == "shared"


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(576, 7168), (1536, 1000), (1, 129)])
@pytest.mark.parametrize("kind", [QuantizeDescriptor, DequantizeDescriptor])
def test_each_kind_has_the_bits_of_the_reference_on_a_gpu(kind, size):
    for dtype, more in (("f8_e4m3", {}), ("i8", {"scale_dtype": "f8_e8m0"})):
        d = made(kind, *size, dtype=dtype, **more)
        plan, args = Plan.select(d, Preference(backend="cuda")), inputs.make_args(d, 3, "cuda")
        plan.run(args)
        assert numerics.check(d, args, plan.sku).worst <= 0
        assert args.out.dtype == torch_dtype(d.dtype if kind is DequantizeDescriptor else dtype)
