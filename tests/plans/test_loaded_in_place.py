"""A plan caches nothing that depends on the values of an operand: values that are loaded into the same memory take effect, also
repeatedly."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from opfacade import Plan, Target
from opfacade.core.descriptor import operands_of
from opfacade.select import registry
from opfacade.testing import inputs
from tests.distributed.calls import call_of, descriptors
from tests.support.local_ranks import on_ranks

OPS = {one.op: one for one in reversed(registry.examples()) if not hasattr(one, "world")}
# so that the test takes a second instead of minutes
OPS["paged_prefill"] = OPS["paged_prefill"].model_copy(update={"batch_size": 2, "total_num_rows": 6})
CPU = Target.cpu()


def tensors(descriptor, args):
    return {name: getattr(args, name) for name in operands_of(descriptor) if getattr(args, name) is not None}


def written(descriptor, args):
    return {name: getattr(args, name) for name, spec in operands_of(descriptor).items() if spec.written}


def drawn_as(descriptor, args, seed):
    """Other operands of the same shapes; the tables of requests are kept if their sizes would differ."""
    other = inputs.make_args(descriptor, seed)
    mine = tensors(descriptor, args)
    if all(mine[name].shape == tensor.shape for name, tensor in tensors(descriptor, other).items()):
        return other
    return replace(other, **{name: tensor.clone() for name, tensor in mine.items() if tensor.dtype == torch.int32})


@pytest.mark.parametrize("op", sorted(OPS))
def test_operands_that_change_in_place_take_effect_in_each_call(op):
    descriptor = OPS[op]
    plan, args = Plan.select(descriptor, target=CPU), inputs.make_args(descriptor, 1)
    plan.run(args)
    for seed in (2, 3):
        other = drawn_as(descriptor, args, seed)
        for name, tensor in tensors(descriptor, other).items():
            getattr(args, name).copy_(tensor)
        plan.run(args)
        plan.run(other)
        for name, want in written(descriptor, other).items():
            found = getattr(args, name)
            assert torch.equal(found.view(torch.uint8), want.view(torch.uint8)), name


OVER_RANKS = descriptors(2)


def loaded(tensors, times):
    """Other values with the same meaning: fractions become smaller, and all other values move to other positions."""
    return {
        name: tensor * 0.9**times if name in ("temperature", "top_p", "min_p") else tensor.flatten().roll(times).view_as(tensor)
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("name", OVER_RANKS)
def test_operands_of_a_call_over_two_ranks_that_change_in_place_take_effect(name):
    descriptor = OVER_RANKS[name]
    plan = Plan.select(descriptor, target=CPU)

    def of_rank(group):
        call = call_of(name, descriptor, group.rank)
        args = call.with_group(group, "cpu")
        plan.run(args)
        seen = [{name: tensor.clone() for name, tensor in call.written(args).items()}]
        for times in (1, 2):
            other = replace(call, inputs=loaded(call.inputs, times))
            for operand, tensor in other.filled("cpu").items():
                getattr(args, operand).copy_(tensor)
            fresh = other.with_group(group, "cpu")
            plan.run(args)
            plan.run(fresh)
            for operand, want in call.written(fresh).items():
                assert torch.equal(getattr(args, operand).view(torch.uint8), want.view(torch.uint8)), operand
            seen.append(call.written(fresh))
        return seen

    for seen in on_ranks(2, of_rank):
        for one, later in pairwise(seen):
            assert any(not torch.equal(one[operand], later[operand]) for operand in one), "nothing depends on what was loaded"
