"""What only a GPU can show of the merge of states."""

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.plans.cascade import EXAMPLES
from opfacade.testing import inputs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("descriptor", EXAMPLES, ids=lambda d: d.dtype)
def test_runs_repeat_bitwise(descriptor):
    plan = Plan.select(descriptor, Preference(backend="cuda"))
    args = inputs.make_args(descriptor, seed=1, device="cuda")
    plan.run(args)
    o, lse = args.o.clone(), args.lse.clone()
    for _ in range(50):
        args.o.fill_(7)
        args.lse.fill_(7)
        plan.run(args)
        assert torch.equal(args.o, o)
        assert torch.equal(args.lse, lse)


def test_empty_states_merge_to_an_empty_state():
    descriptor = EXAMPLES[0]
    args = inputs.make_args(descriptor, seed=1, device="cuda")
    args.states_lse.fill_(-torch.inf)
    args.states_o.fill_(torch.nan)
    Plan.select(descriptor, Preference(backend="cuda")).run(args)
    assert bool((args.o == 0).all())
    assert bool((args.lse == -torch.inf).all())
