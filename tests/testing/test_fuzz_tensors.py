"""Tensors of every kind in torch, in place of each operand and of the workspace: a correct call or an OpfacadeError."""

import random
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from opfacade import Plan, Preference, Target
from opfacade.errors import OpfacadeError
from opfacade.testing import inputs, problems
from tests.support.fuzzing import small


def refusal(call, *args):
    """The error that a call raises, or None if it returns. Any other exception is a finding."""
    try:
        call(*args)
    except OpfacadeError as error:
        return error
    return None


def shrunk(tensor):
    """A view whose storage has fewer bytes than it spans."""
    copy = tensor.clone()
    copy.untyped_storage().resize_(max(0, copy.untyped_storage().nbytes() - 1))
    return copy


def fake(tensor):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return mode.from_tensor(tensor)


def nested(tensor):
    return torch.nested.nested_tensor([tensor.flatten()[:1].float(), tensor.flatten()[:1].float()])


def quantized(tensor):
    return torch.quantize_per_tensor(torch.zeros(tensor.shape), 1.0, 0, torch.qint8)


TENSORS = {
    "sparse": lambda t: torch.zeros(t.shape, dtype=torch.float32).to_sparse(),
    "sparse rows": lambda t: torch.eye(3).to_sparse_csr(),
    "nested": nested,
    "nested jagged": lambda t: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "fake": fake,
    "meta": lambda t: t.to("meta"),
    "shrunk": shrunk,
    "quantized": quantized,
    "complex": lambda t: torch.zeros(t.shape, dtype=torch.complex64),
    "conjugate": lambda t: torch.zeros(t.shape, dtype=torch.complex64).conj(),
    "a bit pattern": lambda t: torch.zeros(t.shape, dtype=torch.bool),
    "expanded": lambda t: torch.zeros(1, dtype=t.dtype).expand(t.numel()).reshape(t.shape) if t.numel() else t,
    "with a gradient": lambda t: torch.zeros(t.shape, requires_grad=True),
    "a parameter": lambda t: torch.nn.Parameter(torch.zeros(t.shape)),
    "of no dimension": lambda t: torch.tensor(1),
    "of many dimensions": lambda t: torch.zeros([1] * 40, dtype=t.dtype),
    "empty": lambda t: torch.empty(0, dtype=t.dtype),
    "no tensor": lambda t: 7,
    "a storage": lambda t: t.untyped_storage(),
    "an array": lambda t: t.float().numpy(),
}


@pytest.mark.parametrize("op", problems.OPS)
@pytest.mark.parametrize("odd", TENSORS)
def test_tensors_in_every_place(op, odd):
    """can_implement refuses if run raises, and both refuse anything but a plain tensor as an operand or workspace."""
    descriptor = small(op, random.Random(0))
    plan = Plan.select(descriptor, Preference(backend="reference"), Target.cpu())
    args = inputs.make_args(descriptor, seed=1)
    for name in [name for name in type(args).__slots__ if getattr(args, name) is not None]:
        hold(plan, replace(args, **{name: TENSORS[odd](getattr(args, name))}), None)
    hold(plan, args, TENSORS[odd](torch.zeros(max(1, plan.workspace_size), dtype=torch.uint8)))


def hold(plan, args, workspace):
    verdict = plan.can_implement(args, workspace)
    error = refusal(plan.run, args, workspace)
    # A call that is wrong only in its values, or that lacks memory, is refused only by the run.
    assert (error is None) == bool(verdict) or error.code in ("OPF-V001", "OPF-R001"), error
