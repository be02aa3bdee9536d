"""Ranks with one GPU each on NCCL: every op equals that of one rank, eager and captured, and a missing rank is named."""

from functools import partial

import pytest
import torch

from tests.distributed import nccl_scenarios, worlds

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs"),
]
_SECONDS = 40
FOUR = pytest.mark.skipif(torch.cuda.device_count() < 4, reason="needs 4 GPUs")
WORLDS = pytest.mark.parametrize("world", [2, pytest.param(4, marks=FOUR)])


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
