"""Groups of gloo processes: ranks agree, or all of them refuse, and every rank names the faulty one in time."""

import os
import subprocess
import sys
from functools import partial

import pytest

from tests.distributed import death_scenarios, scenarios, worlds


def same_on_all(found):
    first, *others = found.values()
    assert all(other == first for other in others), found
    return first


def test_ranks_agree_and_what_they_refuse_is_refused_on_all(tmp_path):
    found = worlds.run(tmp_path, 3, scenarios.together)
    for rank, own in found.items():
        assert [own["members"][rank], [r for r, _ in own["members"]]] == [[rank, True], [0, 1, 2]]
        del own["members"]
    assert same_on_all(found) == {
        "before_reserve": ["OPF-N006", []],
        "same_channel": ["OPF-N005", []],
        "sum": [6.0] * 10,
        "by_name": [6.0] * 10,
        "again": [6.0] * 10,
        "not_reserved": ["OPF-N006", []],
        "reserve_again": ["OPF-N008", []],
        "counts": [True, True],
        "two_threads": ["OPF-N003", []],
        "closed": ["OPF-N004", []],
        "too_large": ["OPF-N008", [0, 1, 2]],
        "other_bytes": ["OPF-N005", [0, 1, 2]],
        "other_world": ["OPF-N008", [0, 1, 2]],
    }


def test_a_default_device_of_the_program_does_not_matter(tmp_path):
    """A group and its link work if they are created while the default device has tensors that the host cannot read."""
    found = worlds.run(tmp_path, 2, scenarios.elsewhere)
    assert same_on_all(found) == {"by_host": [3.0] * 10, "by_link": True}


def after(code, ranks):
    """A call that failed this way, whose outputs are NaN, and whose group stays failed."""
    return [[code, ranks], True, ["OPF-N004", ranks], ["OPF-N004", []]]


def test_ranks_that_run_different_calls_are_told_as_that(tmp_path):
    found = worlds.run(tmp_path, 3, scenarios.apart)
    assert found[1].pop("fewer_calls") in (["OPF-N001", [1]], ["OPF-N004", [1]])
    assert [found[r].pop("fewer_calls") for r in (0, 2)] == [after("OPF-N001", [1])] * 2
    lags = [own.pop("late") for own in found.values()]
    assert [out for out, *_ in lags] == [[6.0] * 10] * 3
    assert lags[0][1:] == lags[2][1:] == [1, True]
    assert same_on_all(found) == {
        "other_plan": ["OPF-N002", [1]],
        "other_call": after("OPF-N002", [2]),
        "closed": after("OPF-N001", [0]),
        "other_target": [["OPF-N002", [2]], True],
        "other_seeds": [None, -1, True, ["OPF-N002", [2]], [-1, -1, -1]],
        "in_range": [None, -1, True, ["OPF-N002", [2]], [3, 3, 3]],
    }


def test_a_rank_that_is_killed_is_named_and_the_others_go_on(tmp_path):
    found = worlds.run(tmp_path, 4, scenarios.killed, dead=(0, 3))
    assert same_on_all(found) == [
        [after("OPF-N001", [0]), True],
        [after("OPF-N001", [2]), True],
        [[3.0] * 10] * 3,
    ]


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize(
    ("stage", "place"), [("group", "setup of the group"), ("reserve", "reserve"), ("run", "collective.run")]
)
def test_a_rank_that_dies_at_any_stage_is_named_with_the_call_and_the_others_go_on(tmp_path, stage, place, victim):
    """The store of the process group is on rank 0, and dies with it."""
    found = worlds.run(tmp_path, 3, partial(death_scenarios.dies, stage=stage, victim=victim), dead=(victim,))
    for code, ranks, text, after in found.values():
        assert [ranks, after] == [[victim], [3.0] * 10]
        if stage == "reserve" and code == "OPF-N004":  # `reserve` begins with a check, which may find the death first
            assert f"no more of rank {victim} (" in text
            continue
        assert code == "OPF-N001"
        assert text.startswith(f"{place}: ")
        assert f"no more of rank {victim} for call " in text


@pytest.mark.parametrize("world", [2, 3, pytest.param(8, marks=pytest.mark.heavy)])
def test_a_rank_that_is_stopped_for_a_moment_is_waited_for_and_later_named(tmp_path, world):
    found, last = worlds.run(tmp_path, world, scenarios.stopped, seconds=60 * max(1, world // 2)), world - 1
    assert [out for out, _ in found.values()] == [[world * (world + 1) / 2] * 10] * world
    assert [found[r][1] for r in range(last)] == [after("OPF-N001", [last])] * last
    assert found[last][1] in (["OPF-N001", [last]], ["OPF-N004", [last]])


def test_a_peer_that_closes_after_equal_calls_has_not_failed_and_no_thread_is_left(tmp_path):
    assert same_on_all(worlds.run(tmp_path, 3, scenarios.ends)) == [[None] * 3, []]


_ENDS_AT_ONCE = """
import sys, torch.distributed as dist
from opfacade.distributed import Group
from tests.distributed.scenarios import say, wait_for
from tests.distributed.worlds import new_process_group
rank = int(sys.argv[1])
group = Group(new_process_group(sys.argv[2], "exit", rank, 3))
say(sys.argv[2], f"made {rank}")
wait_for(sys.argv[2], *(f"made {r}" for r in range(3)))  # a process that ends may take its last frames with it
if rank < 2:
    group.close()
    dist.destroy_process_group()
"""


def test_a_process_with_a_group_ends_without_a_signal_closed_or_not(tmp_path):
    """A remaining thread would need the lock of a finalised interpreter when a peer closes its connection."""
    ranks = [
        subprocess.Popen([sys.executable, "-c", _ENDS_AT_ONCE, str(r), str(tmp_path)], env=os.environ, stderr=subprocess.PIPE)
        for r in range(3)
    ]
    ends = [(process.communicate(timeout=120)[1].decode(), process.returncode) for process in ranks]
    assert [code for _, code in ends] == [0, 0, 0], ends


@pytest.mark.heavy
def test_eight_ranks_agree_and_differ(tmp_path):
    found = worlds.run(tmp_path, 8, scenarios.apart, seconds=240)
    assert [found[r]["other_call"] for r in range(8)] == [after("OPF-N002", [2])] * 8
