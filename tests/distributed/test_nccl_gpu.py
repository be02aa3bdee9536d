"""Ranks with one GPU each on NCCL: every op equals that of one rank, eager and captured, and a missing rank is named."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from opfacade import Plan
from opfacade.core.links import NO_LINKS, Links
from opfacade.core.target import Target
from tests.distributed import calls, nccl_scenarios, worlds

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs"),
]
_SECONDS = 40
FOUR = pytest.mark.skipif(torch.cuda.device_count() < 4, reason="needs 4 GPUs")
WORLDS = pytest.mark.parametrize("world", [2, pytest.param(4, marks=FOUR)])


@pytest.fixture(autouse=True)
def _compiled(world):
    """The time of a scenario is that of its calls: a rank that waits for a compiler is not one that hangs."""
    compile_for(world)


@cache
def compile_for(world):
    targets = [replace(Target.current(), links=links) for links in (NO_LINKS, Links(kind="nvlink"))]
    plans = [Plan.select(d, target=target) for d in calls.descriptors(world).values() for target in targets]
    with ThreadPoolExecutor() as pool:
        for made in [pool.submit(plan.compile) for plan in plans]:
            made.result()


@WORLDS
@pytest.mark.parametrize("peer_memory", [False, True, "kernels"])
def test_every_op_is_that_of_one_rank_eager_and_captured(tmp_path, peer_memory, world):
    scenario = partial(nccl_scenarios.every_op, peer_memory=peer_memory)
    found = worlds.run(tmp_path, world, scenario, seconds=_SECONDS, backend=worlds.NCCL)
    assert {name: one["wrong"] for own in found.values() for name, one in own.items() if one["wrong"]} == {}
    for own in found.values():
        assert own["norm/one"]["bits"] == own["norm/two"]["bits"]
        assert own["fp8/one"]["bits"] == own["fp8/two"]["bits"]
    for name in ("all_gather", "all_reduce", "merge", "norm/one", "fp8/one", "draw", "draw_list", "draw_bins", "logprob"):
        assert all(own[name]["bits"] == found[0][name]["bits"] for own in found.values())


@WORLDS
@pytest.mark.parametrize("peer_memory", [False, True, "kernels"])
@pytest.mark.parametrize(
    "act", ["skips", "stops", "replays less", "dies", "dies in a replay", "first dies", "first dies in a replay"]
)
def test_a_rank_that_does_not_come_is_named_and_the_process_goes_on(tmp_path, act, peer_memory, world):
    scenario = partial(nccl_scenarios.fails, act=act, peer_memory=peer_memory)
    odd = 0 if act.startswith("first") else 1
    dead = (odd,) if "dies" in act else ()
    found = worlds.run(tmp_path, world, scenario, dead=dead, seconds=_SECONDS, backend=worlds.NCCL)
    for own in found.values():
        assert own["told"] == ["OPF-N004", [odd]], own
        assert own["seconds"] < nccl_scenarios.HASTY + 4
        assert own["filled"]
        assert own["works"] == 8
        assert own.get("again", True)


@WORLDS
@pytest.mark.parametrize("peer_memory", [False, True, "kernels"])
@pytest.mark.parametrize("act", ["other call", "other seed"])
def test_ranks_that_make_other_calls_are_named(tmp_path, act, peer_memory, world):
    scenario = partial(nccl_scenarios.differs, act=act, peer_memory=peer_memory)
    found = worlds.run(tmp_path, world, scenario, seconds=_SECONDS, backend=worlds.NCCL)
    for own in found.values():
        assert own["code"] == "OPF-N004", own
        assert "OPF-N002" in own["text"], own
        assert own["filled"], own
