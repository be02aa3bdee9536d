"""Functional forms refuse inputs from which no output shape follows, with the errors of a plan, and never read an input without
memory.
"""

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses import FakeTensorMode

import opfacade.torch_ops  # noqa: F401
from opfacade import Plan, Target
from opfacade.errors import ArgumentTypeError, DTypeError, LayoutError, ShapeError
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.plans.attention import BatchPagedDecodeDescriptor, PagedKvCacheDescriptor
from opfacade.plans.kv_cache import even_page_table
from opfacade.plans.norm import NormDescriptor
from opfacade.plans.quantize import QuantizeDescriptor
from opfacade.plans.rotary import RotaryDescriptor

CPU = Target.cpu()
NORM = NormDescriptor(kind="rms", total_num_rows=3, hidden=8, dtype="f32", weight="none")


def norm(x, **given):
    return torch.ops.opfacade.norm_functional(
        Plan.select(NORM, target=CPU).handle, x, return_residual=False, return_full_out=False, return_scale=False, **given
    )


@pytest.mark.parametrize("shape", [(), (24,), (0,)])
def test_too_few_dimensions_are_refused_with_the_required_shape(shape):
    with pytest.raises(ShapeError, match=r"norm.run: x expected shape \[total_num_rows=3, hidden=8\]"):
        norm(torch.zeros(shape))


def test_a_missing_input_is_named():
    with pytest.raises(ArgumentTypeError, match=r"norm.run: x expected a torch.Tensor, got None"):
        norm(None, weight=torch.ones(8))


def test_a_traced_call_names_it_too():
    with FakeTensorMode(), pytest.raises(ShapeError, match=r"x expected at least 2 dimensions, got \[24\]"):
        norm(torch.empty(24))
    with FakeTensorMode(), pytest.raises(ArgumentTypeError, match=r"x expected a torch.Tensor, got None"):
        norm(None, weight=torch.ones(8))


def test_an_input_that_an_output_follows_is_named():
    plan = Plan.select(QuantizeDescriptor(total_num_rows=3, hidden=128, dtype="f32"), target=CPU)
    with pytest.raises(ArgumentTypeError, match=r"quantize.run: x expected a torch.Tensor, got None"):
        torch.ops.opfacade.quantize_functional(plan.handle, None, torch.zeros(3, 1))


def test_an_output_of_an_input_that_the_plan_has_not_is_left_out_by_a_flag():
    fields = {"total_num_rows": 3, "num_qo_heads": 2, "num_kv_heads": 0, "head_dim": 8, "rotary_dim": 8}
    plan = Plan.select(RotaryDescriptor(**fields, dtype="f32", in_place=False), target=CPU)
    given = (plan.handle, torch.randn(3, 2, 8), torch.arange(3), torch.randn(4, 8))
    for mode in (nullcontext(), FakeTensorMode(allow_non_fake_inputs=True)):
        with mode, pytest.raises(ArgumentTypeError, match=r"k expected a torch.Tensor, got None. Pass return_k_out=False"):
            torch.ops.opfacade.rotary_functional(*given)
    assert torch.ops.opfacade.rotary_functional(*given, return_k_out=False)[0].shape == (3, 2, 8)


@pytest.mark.parametrize("shape", [[-1], [2, -3], [2**62, 2**62]])
def test_a_shape_that_no_tensor_has_is_refused_by_its_name(shape):
    plan = Plan.select(GatedActivationDescriptor(total_num_rows=3, width=8, dtype="f32"), target=CPU)
    for mode in (nullcontext(), FakeTensorMode()):
        with mode, pytest.raises(ShapeError, match=r"gated_activation.run: out_shape expected sizes of 0 or more"):
            torch.ops.opfacade.gated_activation_functional(plan.handle, shape, torch.zeros(3, 16), return_scale=False)


def test_no_copy_is_made_of_a_tensor_whose_storage_has_shrunk():
    """A copy would read unallocated memory, and the process would crash."""
    plan = Plan.select(NORM.model_copy(update={"residual": True}), target=CPU)
    residual = torch.zeros(3, 8)
    residual.untyped_storage().resize_(4)
    with pytest.raises(LayoutError, match=r"residual expected 96 bytes of storage, got 4"):
        torch.ops.opfacade.norm_functional(
            plan.handle, torch.zeros(3, 8), residual=residual, return_full_out=False, return_scale=False
        )


def test_an_output_that_the_plan_has_not_is_left_out_by_the_descriptor_or_by_the_op():
    pool = PagedKvCacheDescriptor(num_total_pages=6, page_size=4, num_kv_heads=2, head_dim=16, dtype="f32", layout="HND")
    sizes = {"batch_size": 2, "num_qo_heads": 4, "paged_kv": pool, "page_table": "block", "return_lse": False}
    plan = Plan.select(BatchPagedDecodeDescriptor(**sizes), target=CPU)
    q, cache = torch.randn(2, 4, 16), torch.randn(6, 2, 4, 16)
    table = even_page_table(2, 9, 4, device="cpu")
    run = torch.ops.opfacade.paged_decode_functional
    hint = r"Set return_lse=True in the descriptor, or pass return_lse=False to the op\. \[OPF-A001\]"
    with pytest.raises(ArgumentTypeError, match=rf"paged_decode\.run: lse expected None .*, got Tensor\. {hint}"):
        run(plan.handle, q, cache, cache, **table)
    assert run(plan.handle, q, cache, cache, **table, return_lse=False)[0].isfinite().all()


def test_beside_other_errors_each_keeps_its_words():
    with pytest.raises(DTypeError, match=r"x expected torch\.float32") as told:
        torch.ops.opfacade.norm_functional(Plan.select(NORM, target=CPU).handle, torch.zeros(3, 8, dtype=torch.float16))
    hints = {issue.argument: issue.hint for issue in told.value.issues}
    assert hints["full_out"] == "Pass return_full_out=False to the op."
    assert "to the op" not in hints["x"] + hints["out"]
