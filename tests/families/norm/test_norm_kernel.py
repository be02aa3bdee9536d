"""Norms on the fold kernels: the bound of each form, rows with gaps, and the same bits in place and in any batch."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.core.descriptor import operands_of
from opfacade.errors import UnsupportedError
from opfacade.plans.norm import NormArgs, Quant
from opfacade.testing import inputs, numerics
from opfacade.testing.batches import changed
from opfacade.testing.families.elementwise import differs
from tests import emulator
from tests.families.norm.test_reference import FORMS, made

SM_90A = Target.parse("sm_90a")
KERNELS = FORMS


def held(subject, args):
    before = numerics.snapshot(subject.descriptor, args)
    subject.run(args)
    found = numerics.check(subject.descriptor, args, subject.plan.sku, before=before)
    assert found.worst <= 1, found


def apart(tensor):
    """A copy whose row stride is larger than the row length."""
    if tensor.ndim != 2:
        return tensor
    wide = torch.empty(tensor.shape[0], tensor.shape[1] + 24, dtype=tensor.dtype)
    return wide[:, 8 : 8 + tensor.shape[1]].copy_(tensor)


@emulator.needed
@pytest.mark.parametrize("name", KERNELS)
def test_each_form_keeps_its_bound_and_its_bits_for_any_strides(name):
    problem = KERNELS[name]
    subject, args = emulator.subject(problem), inputs.make_args(problem, 3)
    names = [one for one in operands_of(problem) if one != "num_valid"]
    other = replace(args, **{one: apart(getattr(args, one)) for one in names})
    held(subject, args)
    held(subject, other)
    for one in names:
        assert not bool(differs(getattr(args, one), getattr(other, one)).any())


@emulator.needed
@pytest.mark.parametrize(
    ("hidden", "fields"),
    [
        (4100, {}),
        (4096, {}),
        (4093, {}),
        (4096, {"residual": True}),
        (2056, {"weight_dtype": "f32"}),
        (8196, {"weight_dtype": "f32"}),
    ],
)
def test_weights_and_biases_of_long_rows_are_not_kept_in_registers(hidden, fields):
    """The three tensors of a long row would take so many registers that too few CTAs fit on an SM."""
    problem = made(kind="layer", hidden=hidden, rows=3, bias=True, **fields)
    subject, args = emulator.subject(problem), inputs.make_args(problem, 3)
    late = dict(zip((one.name for one in problem.folded().inputs), dict(subject.plan.jit_spec.params)["late"], strict=True))
    assert late == {name: name in ("weight", "bias") for name in late}
    args.weight.normal_(), args.bias.normal_()
    held(subject, args)


@emulator.needed
def test_in_place_and_out_of_place_give_the_same_bits():
    plain = made(hidden=640)
    args = inputs.make_args(plain, 3)
    emulator.subject(plain).run(args)
    x = args.x.clone()
    emulator.subject(changed(plain, in_place=True)).run(NormArgs(x=x, weight=args.weight))
    assert torch.equal(x, args.out)


@emulator.needed
def test_a_row_has_its_bits_in_any_batch():
    many, one = made(hidden=1536, rows=6, residual=True), made(hidden=1536, rows=1, residual=True)
    args = inputs.make_args(many, 3)
    alone = NormArgs(
        x=args.x[4:5].clone(), residual=args.residual[4:5].clone(), weight=args.weight, out=torch.empty_like(args.out[:1])
    )
    emulator.subject(many).run(args), emulator.subject(one).run(alone)
    assert torch.equal(alone.out, args.out[4:5])
    assert torch.equal(alone.residual, args.residual[4:5])


@emulator.needed
@pytest.mark.parametrize("layout", ["row", "column", "column_padded4"])
def test_scales_have_the_requested_layout_and_no_other_element_is_written(layout):
    problem = made(hidden=256, rows=6, quant=Quant(scale_layout=layout), num_valid=True)
    args = inputs.make_args(problem, 3, lengths=inputs.DrawnLengths(valid=5))
    held(emulator.subject(problem), args)
    rows = args.scale if layout == "row" else args.scale.t()
    assert bool(rows[:5].isfinite().all())
    assert bool(rows[5:].isnan().all())


def test_a_scale_per_token_after_groups_uses_the_general_kernel():
    plan = Plan.select(FORMS["token_groups"], Preference(backend="cuda"), SM_90A)
    assert plan.sku.impl == "general"
    with pytest.raises(UnsupportedError, match="a row after its groups"):
        Plan.select(FORMS["token_groups"], Preference(backend="cuda", forbid=("general",)), SM_90A)


def test_one_sku_serves_any_number_of_rows():
    skus = {Plan.select(made(hidden=7168, rows=rows), Preference(backend="cuda"), SM_90A).sku.id for rows in (1, 7, 8192)}
    assert len(skus) == 1
    assert "kind=rms" in skus.pop()


@pytest.mark.parametrize("hidden", [2880, 7168])
def test_common_widths_compile_without_spills(hidden):
    plan = Plan.select(made(hidden=hidden, residual=True), Preference(backend="cuda"), SM_90A)
    plan.compile()
    assert plan.cache_state == "shared"


@pytest.mark.gpu
@pytest.mark.parametrize("name", KERNELS)
def test_each_form_keeps_its_bound_on_a_gpu(name):
    problem = KERNELS[name]
    args = inputs.make_args(problem, 3, "cuda")
    plan = Plan.select(problem, Preference(backend="cuda"))
    before = numerics.snapshot(problem, args)
    plan.run(args)
    assert numerics.check(problem, args, plan.sku, before=before).worst <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("hidden", [1024, 4096, 5120, 7168, 8192, 16384, 32768])
@pytest.mark.parametrize(
    "fields", [{}, {"residual": True}, {"kind": "layer", "bias": True}, {"residual": True, "quant": Quant()}]
)
def test_common_widths_keep_the_bound_on_a_gpu(hidden, fields):
    problem = made(hidden=hidden, rows=67, **fields)
    args = inputs.make_args(problem, 3, "cuda")
    plan = Plan.select(problem, Preference(backend="cuda"))
    before = numerics.snapshot(problem, args)
    plan.run(args)
    assert numerics.check(problem, args, plan.sku, before=before).worst <= 1
