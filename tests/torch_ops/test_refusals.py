"""Functional forms refuse inputs that no output follows from by the errors of a plan, and read none that has no memory."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

import opfacade.torch_ops  # noqa: F401
from opfacade import Plan, Target
from opfacade.errors import ArgumentTypeError, LayoutError, ShapeError
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.plans.norm import NormDescriptor
from opfacade.plans.quantize import QuantizeDescriptor

CPU = Target.cpu()
NORM = NormDescriptor(kind="rms", total_num_rows=3, hidden=8, dtype="f32", weight="none")


def norm(x, **given):
    return torch.ops.opfacade.norm_functional(
        Plan.select(NORM, target=CPU).handle, x, return_residual=False, return_full_out=False, return_scale=False, **given
    )


@pytest.mark.parametrize("shape", [(), (24,), (0,)])
def test_too_few_dimensions_are_told_with_the_shape_that_is_due(shape):
    with pytest.raises(ShapeError, match=r"norm.run: x expected shape \[total_num_rows=3, hidden=8\]"):
        norm(torch.zeros(shape))


def test_a_missing_input_is_named():
    with pytest.raises(ArgumentTypeError, match=r"norm.run: x expected a torch.Tensor, got None"):
        norm(None, weight=torch.ones(8))


def test_a_traced_call_names_it_too():
    with FakeTensorMode(), pytest.raises(ShapeError, match=r"x expected 2 dimensions or more, got \[24\]"):
        norm(torch.empty(24))
    with FakeTensorMode(), pytest.raises(ArgumentTypeError, match=r"x expected a torch.Tensor, got None"):
        norm(None, weight=torch.ones(8))


def test_an_input_that_an_output_follows_is_named():
    plan = Plan.select(QuantizeDescriptor(total_num_rows=3, hidden=128, dtype="f32"), target=CPU)
    with pytest.raises(ArgumentTypeError, match=r"quantize.run: x expected a torch.Tensor, got None"):
        torch.ops.opfacade.quantize_functional(plan.handle, None, torch.zeros(3, 1))


@pytest.mark.parametrize("shape", [[-1], [2, -3], [2**62, 2**62]])
def test_a_shape_that_no_tensor_has_is_refused_by_its_name(shape):
    plan = Plan.select(GatedActivationDescriptor(total_num_rows=3, width=8, dtype="f32"), target=CPU)
    with pytest.raises(ShapeError, match=r"gated_activation.run: out_shape expected sizes of 0 or more"):
        torch.ops.opfacade.gated_activation_functional(plan.handle, shape, torch.zeros(3, 16), return_scale=False)


def test_no_copy_is_made_of_a_tensor_whose_storage_has_shrunk():
    """A copy would read memory that is not there: the process would die of it."""
    plan = Plan.select(NORM.model_copy(update={"residual": True}), target=CPU)
    residual = torch.zeros(3, 8)
    residual.untyped_storage().resize_(4)
    with pytest.raises(LayoutError, match=r"residual expected 96 bytes of storage, got 4"):
        torch.ops.opfacade.norm_functional(
            plan.handle, torch.zeros(3, 8), residual=residual, return_full_out=False, return_scale=False
        )
