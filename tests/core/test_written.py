"""For torch's autograd, a run is a write of its outputs, on every backend."""

from dataclasses import replace

import pytest
import torch

import opfacade.torch_ops  # noqa: F401
from opfacade import Plan, Target
from opfacade.core.descriptor import operands_of
from opfacade.plan import forget_selections
from opfacade.select import registry
from opfacade.testing import inputs
from opfacade.torch_ops.forms import forms_of
from tests.distributed.calls import call_of, descriptors
from tests.support.local_ranks import on_ranks
from tests.support.problems import on_reference
from tests.support.sound_calls import PROBLEMS

OPS = {one.op: one for one in registry.examples()}
OVER_RANKS = descriptors(2)


def writing_nothing(descriptor):
    """A new plan. CUDA launchers do not mark outputs as written; this launcher does not even write."""
    forget_selections()  # an equal plan may have its launcher already, and no other test may get this one
    plan = Plan.select(descriptor, target=Target.cpu())
    forget_selections()
    object.__setattr__(plan, "_candidate", replace(plan._candidate, launcher=lambda *_: lambda args, workspace: None))
    return plan


def run(plan, args):
    plan.run(args)


def op(plan, args):
    """None of our kernels in torch's dispatcher marks a write: the run inside the op does."""
    in_place = getattr(plan.descriptor, "in_place", False) or getattr(plan.descriptor, "accumulate", False)
    forms = {form.name: form for form in forms_of([one for one in registry.examples() if one.op == plan.descriptor.op])}
    form = forms[f"{plan.descriptor.op}_" if in_place else plan.descriptor.op]
    given = {name: getattr(args, name) for name in form.order if name != "workspace"}
    getattr(torch.ops.opfacade, form.name)(plan.handle, **given)


WAYS = pytest.mark.parametrize("call", [run, op])


def counted(args, descriptor, call):
    """Whether each operand was marked as written, and whether it shares memory with an operand that the op writes."""
    tensors = {name: getattr(args, name) for name in operands_of(descriptor) if getattr(args, name) is not None}
    before = {name: tensor._version for name, tensor in tensors.items()}
    call()
    places = {name: tensor.untyped_storage().data_ptr() for name, tensor in tensors.items()}
    written = {places[name] for name in tensors if operands_of(descriptor)[name].written}
    assert written
    return {name: (tensors[name]._version > before[name], places[name] in written) for name in tensors}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_run_counts_a_write_of_its_outputs_alone(problem):
    descriptor, args = PROBLEMS[problem]()
    found = counted(args, descriptor, lambda: on_reference(descriptor).run(args))
    assert all(was == is_written for was, is_written in found.values()), found


@WAYS
@pytest.mark.parametrize("name", OPS)
def test_each_op_counts_a_write_of_its_outputs_also_where_a_kernel_writes_behind_torchs_back(name, call):
    plan, args = writing_nothing(OPS[name]), inputs.make_args(OPS[name], 1)
    found = counted(args, OPS[name], lambda: call(plan, args))
    assert all(was == is_written for was, is_written in found.values()), found


@pytest.mark.parametrize("name", OVER_RANKS)
def test_an_op_over_two_ranks_counts_a_write_of_its_outputs_alone(name):
    descriptor = OVER_RANKS[name]
    plan = Plan.select(descriptor, target=Target.cpu())

    def of_rank(group):
        args = call_of(name, descriptor, group.rank).with_group(group, "cpu")
        return counted(args, descriptor, lambda: plan.run(args))

    for found in on_ranks(2, of_rank):
        assert all(was == is_written for was, is_written in found.values()), found


@WAYS
def test_a_value_saved_for_backward_that_a_plan_overwrites_raises(call):
    descriptor, args = PROBLEMS["decode"]()
    plan = writing_nothing(descriptor)
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
