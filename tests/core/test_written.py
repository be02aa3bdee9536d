"""A run is a write of its outputs for torch's autograd, on every backend."""

from dataclasses import replace

import pytest
import torch

import opfacade.torch_ops  # noqa: F401
from opfacade import Plan, Target
from opfacade.core.descriptor import operands_of
from opfacade.select import registry
from opfacade.testing import inputs
from tests.support.problems import on_reference
from tests.support.sound_calls import PROBLEMS

OPS = {one.op: one for one in registry.examples() if not hasattr(one, "world")}


@pytest.mark.parametrize("op", PROBLEMS)
def test_a_run_counts_a_write_of_its_outputs_alone(op):
    descriptor, args = PROBLEMS[op]()
    tensors = {name: getattr(args, name) for name in operands_of(descriptor)}
    before = {name: tensor._version for name, tensor in tensors.items()}
    written = {tensor.untyped_storage().data_ptr() for n, tensor in tensors.items() if operands_of(descriptor)[n].written}
    on_reference(descriptor).run(args)
    for name, tensor in tensors.items():
        assert (tensor._version > before[name]) == (tensor.untyped_storage().data_ptr() in written), name


@pytest.mark.parametrize("op", OPS)
def test_each_op_counts_a_write_of_its_outputs_also_where_a_kernel_writes_behind_torchs_back(op):
    """A launcher of CUDA counts nothing itself; this one writes nothing at all."""
    plan, args = Plan.select(OPS[op], target=Target.cpu()), inputs.make_args(OPS[op], 1)
    object.__setattr__(plan, "_candidate", replace(plan._candidate, launcher=lambda *_: lambda args, workspace: None))
    specs = {name: spec for name, spec in operands_of(OPS[op]).items() if getattr(args, name) is not None}
    before = {name: getattr(args, name)._version for name in specs}
    plan.run(args)
    written = {getattr(args, name).untyped_storage().data_ptr() for name, spec in specs.items() if spec.written}
    assert written
    for name in specs:
        tensor = getattr(args, name)
        assert (tensor._version > before[name]) == (tensor.untyped_storage().data_ptr() in written), name


def run(plan, args):
    plan.run(args)


def op(plan, args):
    given = {name: getattr(args, name) for name in operands_of(plan.descriptor)}
    torch.ops.opfacade.paged_decode(plan.handle, **given)


@pytest.mark.parametrize("call", [run, op])
def test_a_value_saved_for_backward_that_a_plan_overwrites_raises(call):
    descriptor, args = PROBLEMS["decode"]()
    plan = on_reference(descriptor)
    object.__setattr__(plan, "_candidate", replace(plan._candidate, launcher=lambda *_: lambda args, workspace: None))
    weight = torch.ones(args.o.shape, requires_grad=True)
    product = (weight * args.o.zero_()).sum()
    call(plan, args)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_tensors_of_inference_mode_count_nothing_and_are_run():
    with torch.inference_mode():
        descriptor, args = PROBLEMS["decode"]()
        on_reference(descriptor).run(args)
        assert args.o.is_inference()
        assert not torch.isnan(args.o).any()
