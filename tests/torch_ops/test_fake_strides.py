"""Results of functional forms under fake tensors have the strides, shapes and dtypes of real results, for any layout of
operands.
"""

import dataclasses
from contextlib import nullcontext

import pytest
import torch
from torch._subclasses import FakeTensorMode

from opfacade import Plan, Target
from opfacade.core.descriptor import operands_of
from opfacade.core.operands import nbytes
from opfacade.plans.norm import NormDescriptor
from opfacade.select.registry import examples
from opfacade.testing import inputs
from opfacade.torch_ops.library import Functional
from tests.torch_ops.test_ops import dtypes_of, form_of, made_of, op

CPU = Target.cpu()


def turned(tensor):
    """The same values, dense, with the last two axes larger than 1 swapped in memory."""
    axes = [axis for axis, n in enumerate(tensor.shape) if n > 1]
    if len(axes) < 2:
        return None
    order = list(range(tensor.ndim))
    order[axes[-2]], order[axes[-1]] = order[axes[-1]], order[axes[-2]]
    return tensor.permute(order).contiguous().permute(order)


def lifted(tensor):
    """The first two axes swapped in memory, if the last axis is neither."""
    if tensor.ndim < 3 or min(tensor.shape[:2]) < 2:
        return None
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


def shapes_of(found):
    return [(tuple(t.shape), t.stride(), t.dtype) for t in (found if isinstance(found, (tuple, list)) else [found])]


def size(problem):
    return nbytes(list(operands_of(problem).values()))


def calls():
    """Each operand of each op that creates its results, in the smallest example that reads it."""
    found = {}
    for problem in sorted(examples(), key=size):
        if getattr(problem, "in_place", False) or getattr(problem, "accumulate", False):
            continue
        for name, spec in operands_of(problem).items():
            if len(spec.shape) > 1 and spec.role in ("in", "inout"):
                found.setdefault((problem.op, name), problem)
    return [pytest.param(problem, name, id=f"{op}-{name}") for (op, name), problem in found.items()]


def accepted(problem, args, operand, tensor):
    """The call with that tensor, if the plan accepts it."""
    moved = dataclasses.replace(args, **{operand: tensor})
    return moved if tensor is not None and Plan.select(problem, target=CPU).can_implement(moved) else None


@pytest.mark.parametrize(("problem", "operand"), calls())
def test_a_fake_result_lies_as_the_real_one(problem, operand):
    plan, args = Plan.select(problem, target=CPU), inputs.make_args(problem, seed=1)
    for lay in (turned, lifted):
        moved = accepted(problem, args, operand, lay(getattr(args, operand)))
        if moved is None:
            continue
        functional, dtypes = op(f"{problem.op}_functional"), dtypes_of(problem, moved)
        given = [plan.handle, *made_of(problem, moved)]
        with FakeTensorMode() as mode:
            wrapped = [mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in given]
            fake = shapes_of(functional(*wrapped, **dtypes))
        assert fake == shapes_of(functional(*given, **dtypes))


@pytest.mark.parametrize("faked", [False, True])
def test_a_copy_of_a_transposed_residual_is_transposed(faked):
    """By hand: the functional form copies the overwritten operand by clone, which keeps the order of a dense tensor."""
    problem = NormDescriptor(kind="rms", total_num_rows=3, hidden=5, dtype="f32", weight="none", residual=True)
    plan, (x, residual) = Plan.select(problem, target=CPU), (torch.ones(3, 5), torch.ones(5, 3).t())
    with FakeTensorMode() if faked else nullcontext() as mode:
        given = [mode.from_tensor(t) if faked else t for t in (x, residual)]
        values = dict(zip(("x", "residual"), given, strict=True))
        inputs_of = [values.get(name) for name in form_of(problem).inputs]
        found = dict(
            zip(form_of(problem).results, op("norm_functional")(plan.handle, *inputs_of, **absent(problem)), strict=True)
        )
        assert (found["residual"].stride(), found["out"].stride()) == ((1, 3), (5, 1))


def absent(problem):
    """Flags that omit the results that a plan does not have."""
    return {flag: name in operands_of(problem) for name, flag in Functional(form_of(problem)).flags.items()}
