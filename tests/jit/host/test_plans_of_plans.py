"""Composite plans on CUDA: the host library checks all calls except the first. In these tests, the steps are those of the
reference."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Target, errors
from opfacade import plan as plans
from opfacade.backends.cuda import composed as on_cuda
from opfacade.backends.cuda.host.direct import KernelCall
from opfacade.plans._composites.composed import composed
from opfacade.select.registry import examples
from opfacade.testing import inputs
from tests.jit.host.test_contract import HOST

LAYER = next(one for one in examples() if one.op == "fused_moe")


def nothing(problem):
    return ()


@pytest.fixture
def in_full(monkeypatch):
    """The calls that got the full check."""
    found, issues = [], Plan._issues
    monkeypatch.setattr(Plan, "_issues", lambda plan, *call: found.append(call) or issues(plan, *call))
    return found


@pytest.fixture
def plan(monkeypatch):
    monkeypatch.setattr(plans, "_selected", {})
    monkeypatch.setattr(on_cuda, "composed", lambda kind, backend, *facts, **more: composed(kind, "reference", *facts))
    monkeypatch.setattr(on_cuda, "KernelCall", lambda *given: KernelCall(*given, HOST))
    plan = Plan.select(LAYER, target=Target.cpu())
    launcher = on_cuda.composed_on_cuda(type(LAYER), nothing, nothing).launcher
    object.__setattr__(plan, "_candidate", replace(plan._candidate, launcher=launcher))
    return plan


def test_the_host_library_checks_repeated_calls(plan, in_full):
    launch = plan._candidate.launcher(LAYER, plan.target, plan.sku, True)
    for seed in (1, 1, 2):
        args, other = inputs.make_args(LAYER, seed=seed), inputs.make_args(LAYER, seed=seed)
        plan.run(args)
        launch(other, torch.empty(plan.workspace_size, dtype=torch.uint8))
        assert torch.equal(args.out, other.out)
    assert len(in_full) == 1
    with pytest.raises(errors.ShapeError):
        plan.run(replace(args, out=args.out[:1]))
    assert len(in_full) == 2


def test_a_small_workspace_is_refused(plan, in_full):
    args = inputs.make_args(LAYER, seed=1)
    for _ in range(2):
        with pytest.raises(errors.WorkspaceError):
            plan.run(args, torch.empty(plan.workspace_size - 1, dtype=torch.uint8))
        plan.run(args)
    assert len(in_full) == 3
