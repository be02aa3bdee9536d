"""Plans by batch size: a batch uses the smallest size that fits it, and all plans exist before a graph is captured."""

import pytest

from opfacade import Plan, PlanCache, Preference, Target, Workspace
from opfacade.core.plan_handles import plan_of
from opfacade.errors import ArgumentError, ArgumentTypeError, DescriptorError
from opfacade.plan import forget_selections
from opfacade.plans.attention import BatchPagedDecodeDescriptor, PagedKvCacheDescriptor

CPU = Target.cpu()
CACHE = PagedKvCacheDescriptor(num_total_pages=64, page_size=4, num_kv_heads=2, head_dim=8, dtype="f32", layout="HND")


def decode(n):
    return BatchPagedDecodeDescriptor(batch_size=n, num_qo_heads=4, paged_kv=CACHE)


def test_a_batch_has_the_plan_of_the_smallest_size_that_holds_it():
    plans = PlanCache(decode, (8, 1, 4, 4), target=CPU)
    assert plans.sizes == (1, 4, 8)
    assert [plans.size_for(n) for n in range(9)] == [1, 1, 4, 4, 4, 8, 8, 8, 8]
    assert [plans.at(n).descriptor.batch_size for n in (0, 1, 2, 4, 5, 8)] == [1, 1, 4, 4, 8, 8]
    assert plans.at(3) is plans.at(4)
    assert plans.at(4) is Plan.select(decode(4), target=CPU)


def test_a_batch_beyond_the_sizes_is_refused():
    plans = PlanCache(decode, (1, 4), target=CPU)
    for n in (5, -1):
        with pytest.raises(ArgumentError, match=rf"n expected 0 to 4, got {n}\. .*OPF-W005"):
            plans.at(n)
    for n in (3.5, True, "3", None):
        with pytest.raises(ArgumentTypeError, match=rf"PlanCache\.size_for: n expected an int, got {n!r} of .*OPF-W004"):
            plans.at(n)


def test_it_keeps_its_plans_and_their_handles():
    plans = PlanCache(decode, (2,), target=CPU)
    handle = plans.at(1).handle
    forget_selections()
    assert plan_of(handle) is plans.at(2)


def test_compile_makes_all_of_them_and_reserves_for_the_largest(monkeypatch):
    compiled, reserved = [], []
    monkeypatch.setattr(Plan, "compile", lambda plan: compiled.append(plan.descriptor.batch_size))
    monkeypatch.setattr(Workspace, "reserve", lambda self, *plans: reserved.extend(p.descriptor.batch_size for p in plans))
    plans = PlanCache(decode, (4, 2), target=CPU)
    plans.compile()
    assert (compiled, reserved) == ([2, 4], [2, 4])


def test_a_preference_holds_for_all_and_a_workspace_is_shared():
    shared = Workspace("cpu")
    plans = PlanCache(decode, (2,), prefer=Preference(backend="reference"), target=Target.parse("sm_90a"), workspace=shared)
    assert plans.at(1).sku.backend == "reference"
    assert plans.workspace is shared


def test_bad_sizes_and_descriptors_are_refused_by_type():
    for sizes in ((), (0, 1), (-1,)):
        with pytest.raises(ArgumentError, match=r"sizes expected one or more positive ints.*OPF-W004"):
            PlanCache(decode, sizes)
    with pytest.raises(ArgumentTypeError, match=r"sizes expected ints, got 2\.0 of float"):
        PlanCache(decode, (1, 2.0))
    with pytest.raises(DescriptorError):
        PlanCache(lambda n: BatchPagedDecodeDescriptor(batch_size=n, num_qo_heads=3, paged_kv=CACHE), (1,)).at(1)
