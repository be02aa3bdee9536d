"""Plans: one plan per value, immutable, cached and serialisable."""

import pickle
from types import SimpleNamespace

import pytest

from opfacade import Plan, Preference
from opfacade.errors import ArgumentTypeError
from opfacade.plans.attention import BatchPagedDecodeDescriptor, BatchPagedDecodePlan, BatchPagedPrefillDescriptor
from opfacade.select.registry import examples
from tests.select.test_selection import CPU, SM_90A, fresh
from tests.support.problems import decode, on_reference


def test_selection_twice_is_the_same_plan():
    descriptor = fresh()
    first = Plan.select(descriptor, None, CPU)
    assert Plan.select(descriptor.model_copy(), None, CPU) is first
    assert Plan.select(descriptor, Preference(jit="never"), CPU) is not first
    assert type(BatchPagedDecodePlan.select(descriptor, None, CPU)) is BatchPagedDecodePlan


def test_a_plan_is_kept_for_its_target_and_its_preference_alone():
    descriptor = fresh()
    first = Plan.select(descriptor, None, SM_90A)
    assert Plan.select(descriptor, None, SM_90A) is first
    assert Plan.select(descriptor, None, CPU).target == CPU
    assert Plan.select(descriptor, None, SM_90A) is first
    assert Plan.select(descriptor, Preference(backend="reference"), SM_90A).sku.backend == "reference"


def test_the_store_of_plans_is_bounded(monkeypatch):
    from opfacade import plan as plan_module

    monkeypatch.setattr(plan_module, "_selected", {})
    monkeypatch.setattr(plan_module, "_MAX_CACHED", 5)
    for _ in range(20):
        Plan.select(fresh(), None, CPU)
    assert len(plan_module._selected) == 5


def test_a_plan_is_immutable():
    plan = Plan.select(fresh(), None, CPU)
    for name in (*Plan.__slots__, "surprise"):
        with pytest.raises(AttributeError, match=name):
            setattr(plan, name, 1)
    with pytest.raises(TypeError, match="select"):
        Plan()


@pytest.mark.parametrize("target", [CPU, SM_90A], ids=lambda t: t.arch)
def test_a_plan_survives_pickling(target):
    plan = BatchPagedDecodePlan.select(fresh(), Preference(max_workspace_bytes=2**30), target)
    again = pickle.loads(pickle.dumps(plan))
    assert type(again) is BatchPagedDecodePlan
    facts = [(p.descriptor, p.preference, p.target, p.sku, p.workspace_size) for p in (plan, again)]
    assert facts[0] == facts[1]
    assert repr(plan) == f"BatchPagedDecodePlan({plan.sku.id})"


def test_a_pickled_plan_still_runs():
    descriptor, args = decode([6, 9])
    pickle.loads(pickle.dumps(on_reference(descriptor))).run(args)
    assert not args.o.isnan().any()


def test_selecting_by_the_general_plan_takes_every_descriptor():
    for example in examples():
        assert Plan.select(example, None, CPU).descriptor == example
    with pytest.raises(ArgumentTypeError):
        BatchPagedDecodePlan.select(next(e for e in examples() if isinstance(e, BatchPagedPrefillDescriptor)), None, CPU)


def test_a_plan_cannot_be_taken_apart():
    plan = Plan.select(fresh(), None, SM_90A)
    for name in ("workspace_size", "sku", "_fast"):
        with pytest.raises(AttributeError, match=f"a plan is immutable: cannot delete {name}"):
            delattr(plan, name)


def test_what_cannot_be_hashed_is_selected_for_all_the_same():
    known = fresh()
    fields = {**known.__dict__, "paged_kv": known.paged_kv.model_dump()}
    unproven = BatchPagedDecodeDescriptor.model_construct(**fields)
    assert Plan.select(unproven, None, SM_90A).descriptor == known


def test_messages_tell_a_class_from_its_instance():
    with pytest.raises(ArgumentTypeError, match="got the class BatchPagedDecodeDescriptor"):
        Plan.select(BatchPagedDecodeDescriptor, None, SM_90A)
    with pytest.raises(TypeError, match=r"Write BatchPagedDecodePlan.select"):
        BatchPagedDecodePlan(fresh())


def test_a_check_raises_what_earlier_runs_left():
    plan, asked = Plan.select(fresh(), None, CPU), []
    plan.check()
    object.__setattr__(plan, "_guard", SimpleNamespace(check=lambda: asked.append(1)))
    plan.check()
    assert asked == [1]


def test_a_guard_stands_around_every_launch():
    descriptor, args = decode([9, 5])
    plan, guarded = Plan._select(descriptor, None, CPU), []

    def wrap(launch):
        return lambda *call: (guarded.append(call), launch(*call))[1]

    object.__setattr__(plan, "_guard", SimpleNamespace(wrap=wrap, check=lambda: None))
    for _ in range(2):
        plan.run(args)
    assert guarded == [(args, None)] * 2
