"""A handle refers to one plan for the life of the process, and to none after the plan is deleted."""

import gc
import pickle

import pytest

from opfacade import Plan, Preference, Target
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
    assert again.handle == plans[1].handle


def test_a_plan_that_is_gone_is_an_error_and_its_number_is_of_an_equal_plan_alone():
    handle = Plan.select(problem(4), target=CPU).handle
    forget_selections()
    gc.collect()
    other = Plan.select(problem(5), target=CPU)
    for number in (handle, 0, -1, 2**40):
        with pytest.raises(
            PlanStateError, match=rf"alive, as .*{other.handle} \(attention/paged_decode/.*, got {number}\. .*R020"
        ):
            plan_of(number)
    again = Plan.select(problem(4), target=CPU)
    assert again.handle == handle
    assert plan_of(handle) is again


def test_an_equal_plan_stands_in_for_one_that_is_gone():
    first = Plan.select(problem(6), target=CPU)
    forget_selections()
    second = Plan.select(problem(6), target=CPU)
    assert first is not second
    handle = second.handle
    del first
    gc.collect()
    assert plan_of(handle) is second


def test_every_choice_and_every_field_has_a_number_of_its_own():
    """A graph must not run a plan with another scale, window or workspace."""
    given = problem(2)
    changed = [
        given.model_copy(update=update).revalidated()
        for update in ({}, {"sm_scale": 0.5}, {"window_left": 3}, {"max_kv_len": 9}, {"kv_split": 8}, {"return_lse": True})
    ]
    handles = {Plan.select(d, prefer, CPU).handle for d in changed for prefer in (None, Preference(jit="never"))}
    targets = (Target.parse("sm_90a"), Target("sm_90a", 114, 232448))
    handles |= {Plan.select(given, Preference(backend="reference"), target).handle for target in targets}
    assert len(handles) == 2 * len(set(changed)) + 2
