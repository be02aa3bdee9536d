"""A handle is of one plan for the life of the process, and of none when the plan is gone."""

import gc
import pickle

import pytest

from opfacade import Plan, Target
from opfacade.core.plan_handles import plan_of
from opfacade.errors import PlanStateError
from opfacade.plan import forget_selections
from tests.support.problems import decode

CPU = Target.cpu()


def problem(batch):
    return decode([6] * batch)[0]


def test_a_handle_finds_its_plan_and_no_other():
    plans = [Plan.select(problem(n), target=CPU) for n in (1, 2, 3)]
    assert [plan_of(p.handle) for p in plans] == plans
    assert len({p.handle for p in plans}) == 3
    assert min(p.handle for p in plans) >= 2
    assert Plan.select(problem(2), target=CPU).handle == plans[1].handle
    again = pickle.loads(pickle.dumps(plans[1]))
    assert plan_of(again.handle) is again


def test_a_plan_that_is_gone_is_an_error_and_its_number_is_not_given_again():
    handle = Plan.select(problem(4), target=CPU).handle
    forget_selections()
    gc.collect()
    again = Plan.select(problem(4), target=CPU)
    assert again.handle > handle
    for number in (handle, 0, -1, 2**40):
        with pytest.raises(PlanStateError, match=rf"got {number}\. .* \[OPF-R020\]"):
            plan_of(number)
    assert plan_of(again.handle) is again
