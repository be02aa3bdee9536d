"""Kernels that are compiled before the first call."""

from opfacade import Plan, Preference, Target, jit
from opfacade.testing import matrix, prebuilt
from tests.support import build_first
from tests.support.assemblers import any_assembler


def test_a_kernel_of_several_plans_is_built_once(monkeypatch):
    built, all_kinds = [], matrix.matrix()
    monkeypatch.setattr(jit, "build_for_plan", lambda spec, label: built.append(spec))
    with any_assembler():
        kinds = ("fused_moe-0", "fused_moe-3", "moe_combine-0")
        plans = [Plan.select(all_kinds[kind], Preference(backend="cuda"), Target.parse("sm_90a")) for kind in kinds]
        prebuilt.build_plans(plans)
        wanted = [spec for plan in plans for spec in plan.jit_specs]
    assert len(wanted) > len(set(wanted)) == len(built)
    assert set(built) == set(wanted)


def test_workers_build_nothing_before_their_tests(monkeypatch):
    asked = []
    monkeypatch.setattr(prebuilt, "build", lambda problems: asked.append([*problems]))
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    build_first.build_first([1])
    assert asked == []
    monkeypatch.delenv("PYTEST_XDIST_WORKER")
    build_first.build_first([1])
    assert asked == [[1]]
