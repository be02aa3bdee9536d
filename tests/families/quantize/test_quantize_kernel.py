"""Quantisation by the fold kernels has the bits of the reference."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.core.descriptor import operands_of
from opfacade.plans.quantize import DequantizeDescriptor, Quant, QuantizeDescriptor
from opfacade.testing import inputs, numerics
from tests import emulator
from tests.families.norm.test_norm_kernel import apart
from tests.families.quantize.test_reference import FORMS


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_the_kernel_has_the_bits_of_the_reference_for_any_row_stride(name):
    problem = FORMS[name]
    subject, args = emulator.subject(problem), inputs.make_args(problem, 3)
    names = [one for one in operands_of(problem) if one != "num_valid"]
    for call in (args, replace(args, **{one: apart(getattr(args, one)) for one in names})):
        before = numerics.snapshot(problem, call)
        subject.run(call)
        assert numerics.check(problem, call, subject.plan.sku, before=before).worst <= 0


@emulator.needed
def test_padding_of_scales_is_not_written():
    problem = FORMS["column_padded4"]
    args = inputs.make_args(problem, 3)
    emulator.subject(problem).run(args)
    assert args.scale.shape == (4, 8)
    assert bool(args.scale[:, 6:].isnan().all())
    assert bool(args.scale[:, :6].isfinite().all())


def test_the_kernel_compiles_without_spills():
    plan = Plan.select(
        QuantizeDescriptor(total_num_rows=64, hidden=7168, dtype="bf16"), Preference(backend="cuda"), Target.parse("sm_90a")
    )
    plan.compile()
    assert plan.cache_state == "shared"


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["row", "column", "column_padded4"])
@pytest.mark.parametrize("kind", [QuantizeDescriptor, DequantizeDescriptor])
def test_the_kernel_has_the_bits_of_the_reference_on_a_gpu(kind, layout):
    problem = kind(total_num_rows=67, hidden=7168, dtype="bf16", quant=Quant(scale_layout=layout))
    args = inputs.make_args(problem, 3, "cuda")
    plan = Plan.select(problem, Preference(backend="cuda"))
    plan.run(args)
    assert numerics.check(problem, args, plan.sku).worst <= 0
    torch.cuda.synchronize()
