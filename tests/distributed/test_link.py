"""Rounds between GPUs, with gloo in place of NCCL: data, headers, and the watch, which ends a call that no other rank makes."""

import pytest
import torch

from opfacade.distributed.link import Link
from tests.distributed import link_scenarios, worlds


@pytest.mark.parametrize("world", [2, 3])
def test_a_round_of_the_link_has_the_bits_of_one_by_host_memory(tmp_path, world):
    found = worlds.run(tmp_path, world, link_scenarios.same_bits)
    assert all(own["differ"] == [] and own["calls"] >= 14 for own in found.values()), found


def test_ranks_that_differ_are_named_and_outputs_are_filled(tmp_path):
    found = worlds.run(tmp_path, 3, link_scenarios.other_seed)
    assert [own["before"] for own in found.values()] == [True] * 3
    assert [own["after"] for own in found.values()] == [[-7] * 5] * 3
    assert {own["told"][0] for own in found.values()} <= {"OPF-N002", "OPF-N004"}
    assert [own["told"][1] for own in found.values()] == [[2]] * 3


def test_a_rank_that_makes_one_call_fewer_is_named_in_time(tmp_path):
    found = worlds.run(tmp_path, 2, link_scenarios.skips)
    assert found[0]["told"] == ["OPF-N004", [1]]
    assert "rank 1 is at call" in found[0]["text"]
    assert found[0]["seconds"] < 15
    assert found[1]["told"] == ["OPF-N004", [1]]


def test_a_rank_that_is_killed_is_named_at_once(tmp_path):
    found = worlds.run(tmp_path, 2, link_scenarios.killed, dead=(1,))
    assert found[0]["told"] == ["OPF-N004", [1]]
    assert found[0]["seconds"] < 15


class Echo:
    """A process group of two ranks that send the same."""

    def size(self):
        return 2

    def _allgather_base(self, found, own, options):
        found.view(2, -1).copy_(own)


def test_outputs_of_calls_after_a_failure_of_the_host_are_filled():
    """NaN in floats, -1 in integers."""
    link, own = Link(Echo(), torch.device("cpu")), torch.arange(3.0)
    link.learn("sum", bytes(8))
    assert [part.tolist() for part in link.gathered("sum", own, ())] == [[0, 1, 2]] * 2
    link.poison()
    assert all(part.isnan().all() for part in link.gathered("sum", own, ()))
    assert [part.tolist() for part in link.gathered("sum", own.int(), ())] == [[-1] * 3] * 2
    assert link.ended == 3
