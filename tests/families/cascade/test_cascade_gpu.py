"""GPU tests of merge_states."""

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.plans.cascade import EXAMPLES
from opfacade.testing import inputs, numerics
from opfacade.testing.bits import same_bits

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("descriptor", EXAMPLES, ids=lambda d: f"{d.dtype}-{d.states}-{d.in_place}")
def test_runs_repeat_bitwise(descriptor):
    """The comparison is of bits because the o of an empty state is NaN, and an in-place merge leaves NaN in the states after
    the first."""
    plan = Plan.select(descriptor, Preference(backend="cuda"))
    args = inputs.make_args(descriptor, seed=1, device="cuda")
    written = [name for name, spec in descriptor.operands().items() if spec.written]
    before = numerics.snapshot(descriptor, args)
    plan.run(args)
    first = {name: getattr(args, name).clone() for name in written}
    for _ in range(50):
        for name in written:
            getattr(args, name).copy_(before[name]) if name in before else getattr(args, name).fill_(7)
        plan.run(args)
        assert all(same_bits(getattr(args, name), first[name]) for name in written)


def test_empty_states_merge_to_an_empty_state():
    descriptor = EXAMPLES[0]
    args = inputs.make_args(descriptor, seed=1, device="cuda")
    args.states_lse.fill_(-torch.inf)
    args.states_o.fill_(torch.nan)
    Plan.select(descriptor, Preference(backend="cuda")).run(args)
    assert bool((args.o == 0).all())
    assert bool((args.lse == -torch.inf).all())
