"""Calls over ranks compile only the kernels that their candidates list, and compile nothing when they run."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, jit
from opfacade.core.links import Links
from opfacade.core.target import Target
from opfacade.distributed import peers
from opfacade.select.registry import candidates_for
from tests.distributed import calls
from tests.support.local_peers import on_peers
from tests.support.local_ranks import on_ranks

HERE = Target.parse("sm_90a")
TARGETS = {"alone": HERE, "linked": replace(HERE, links=Links(kind="nvlink"))}


def cases():
    for world in (2, 3, 9):
        for target in TARGETS:
            for name, descriptor in calls.descriptors(world).items():
                for candidate in candidates_for(type(descriptor)):
                    if candidate.backend == "cuda" and not candidate.declines(descriptor, TARGETS[target]):
                        yield pytest.param(name, world, target, candidate, id=f"{name}-{world}-{target}-{candidate.impl}")


class Silent:
    """A module whose kernels write nothing."""

    def run(self, *given): ...
    def prepare(self, device): ...


class Compiler:
    """Stands in for opfacade.jit. asked: the kernels that were built or loaded, and whether a build was allowed."""

    def __init__(self):
        self.asked = []

    def load(self, spec, *, allow_build=True, label=""):
        if spec != jit.HOST:
            self.asked.append((spec, allow_build))
        return Silent()

    build = load

    @property
    def specs(self):
        return {spec for spec, _ in self.asked}


@pytest.fixture
def compiler(monkeypatch):
    made = Compiler()
    monkeypatch.setattr(jit, "load", made.load)
    monkeypatch.setattr(jit, "build", made.build)
    monkeypatch.setattr(Plan, "run", run_on_cpu)
    return made


def run_on_cpu(plan, args, workspace=None):
    """Runs a plan for a GPU on CPU tensors."""
    launch = plan._candidate.launcher(plan.descriptor, plan.target, plan.sku, plan.preference.jit == "build")
    launch(args, torch.empty(plan.workspace_size, dtype=torch.uint8))


@pytest.mark.parametrize(("name", "world", "target", "candidate"), list(cases()))
def test_a_call_compiles_what_its_candidate_lists_and_only_before_it_runs(name, world, target, candidate, compiler):
    target, descriptor = TARGETS[target], calls.descriptors(world)[name]
    sku = candidate.sku(descriptor, target)
    launch = candidate.launcher(descriptor, target, sku, True)
    of_group = {peers.spec_of_rounds(target.arch)} if world <= peers.MOST_PEERS else set()
    before, listed = compiler.specs, candidate.jit_specs(descriptor, target)
    assert set(listed) == before | of_group
    assert len(set(listed)) == len(listed)

    def call(group):
        launch(calls.call_of(name, descriptor, group.rank).with_group(group, "cpu"), None)

    on_peers(world, 1 << 14, call) if candidate.impl == "peers" else on_ranks(world, call)
    assert compiler.specs == before


@pytest.mark.parametrize(("name", "world", "target", "candidate"), list(cases()))
def test_a_call_that_may_not_build_builds_nothing(name, world, target, candidate, compiler):
    target, descriptor = TARGETS[target], calls.descriptors(world)[name]
    launch = candidate.launcher(descriptor, target, candidate.sku(descriptor, target), False)
    if world == 2:

        def call(group):
            launch(calls.call_of(name, descriptor, group.rank).with_group(group, "cpu"), None)

        on_peers(world, 1 << 14, call) if candidate.impl == "peers" else on_ranks(world, call)
    assert not any(allowed for _, allowed in compiler.asked)


def test_there_is_a_candidate_of_each_kind():
    found = {(case.values[0], case.values[3].impl) for case in cases()}
    assert {name for name, _ in found} == set(calls.descriptors(2))
    assert {impl for _, impl in found} == {"nccl", "peers"}
