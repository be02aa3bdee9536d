"""A run is a write of its outputs for torch's autograd, on every backend."""

from dataclasses import replace

import pytest
import torch

import opfacade.torch_ops  # noqa: F401
from opfacade.core.descriptor import operands_of
from tests.support.problems import on_reference
from tests.support.sound_calls import PROBLEMS


@pytest.mark.parametrize("op", PROBLEMS)
def test_a_run_counts_a_write_of_its_outputs_alone(op):
    descriptor, args = PROBLEMS[op]()
    tensors = {name: getattr(args, name) for name in operands_of(descriptor)}
    before = {name: tensor._version for name, tensor in tensors.items()}
    written = {tensor.untyped_storage().data_ptr() for n, tensor in tensors.items() if operands_of(descriptor)[n].written}
    on_reference(descriptor).run(args)
    for name, tensor in tensors.items():
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
