"""Functions that the tests of all fold kernels share: build without spills, run on a GPU within the bound, and compare the bits
of the paths."""

from dataclasses import replace

import torch

from opfacade import Plan, Preference, Target
from opfacade.core.descriptor import operands_of
from opfacade.testing import numerics
from opfacade.testing.families.elementwise import differs


def builds_without_spills(problem):
    """Compiles the problem; compile() raises if ptxas reports spills."""
    plan = Plan.select(problem, Preference(backend="cuda"), Target.parse("sm_90a"))
    plan.compile()
    assert plan.cache_state == "shared"


def on_gpu(problem, args, forbid=()):
    """Runs the call on a GPU with garbage in the workspace, asserts the bound, and returns the call."""
    call = replace(args, **{name: getattr(args, name).cuda() for name in operands_of(problem)})
    plan = Plan.select(problem, Preference(backend="cuda", forbid=forbid))
    before = numerics.snapshot(problem, call)
    plan.run(call, torch.full((plan.workspace_size,), 0xA5, dtype=torch.uint8, device="cuda") if plan.workspace_size else None)
    assert numerics.check(problem, call, plan.sku, before=before).worst <= 1
    return call


def same_on_every_path(subject, args, calls):
    """Asserts that all calls, which have the values of `args` in other layouts, give the same bits. The first call is `args`
    itself, so operands that the op overwrites are copied."""
    problem = subject.descriptor
    fresh = {name for name, spec in operands_of(problem).items() if spec.role == "inout"}
    calls[0] = replace(calls[0], **{name: getattr(args, name).clone() for name in fresh})
    for call in calls:
        subject.run(call)
    for one, *others in zip(*(problem.written(call) for call in calls), strict=True):
        for other in others:
            assert not bool(differs(one, other).any())
