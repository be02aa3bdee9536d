"""Proofs of `verify` in several processes: the same results and lines, in order; faults reach the caller."""

import os
from functools import partial
from multiprocessing import Value
from unittest.mock import patch

import pytest

from opfacade.errors import PlanStateError
from opfacade.tools import proofs
from tests.tools.test_verify import quietly


def proof(number, say, gate=None):
    """gate: a pipe at which the first proof waits for the second."""
    if gate is not None and number < 2:
        with open(gate, "rb" if number == 0 else "wb"):
            pass
    say(f"proof {number}")
    if number == 7:
        raise LookupError("seven")
    if number == 8:
        os._exit(1)
    return number, os.getpid()


def found(numbers, jobs, gate=None):
    said = []
    return list(proofs.results([partial(proof, number, gate=gate) for number in numbers], jobs, said.append)), said


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_and_lines_are_in_the_order_of_the_proofs(jobs, tmp_path):
    os.mkfifo(tmp_path / "gate")
    results, said = found(range(4), jobs, tmp_path / "gate" if jobs == 2 else None)
    assert [number for number, _ in results] == [0, 1, 2, 3]
    assert said == [f"proof {number}" for number in range(4)]
    assert (os.getpid() in {process for _, process in results}) == (jobs == 1)


def test_a_fault_in_another_process_reaches_the_caller():
    with pytest.raises(LookupError, match="seven"):
        found((1, 7), 2)


def test_a_process_that_ends_before_its_proof_is_told():
    with pytest.raises(PlanStateError, match=r"ended with [01] of 2 proofs done.*OPF-V006"):
        found((1, 8), 2)


def test_each_process_takes_the_next_gpu_and_its_share_of_the_cores():
    taken, threads, started = [], [], Value("i", 0)
    with (
        patch("torch.cuda.is_available", lambda: True),
        patch("torch.cuda.device_count", lambda: 2),
        patch("torch.cuda.set_device", taken.append),
        patch("torch.set_num_threads", threads.append),
        patch("os.sched_getaffinity", lambda _: set(range(8))),
    ):
        for _ in range(3):
            proofs._start(started, 3)
    assert (taken, threads) == ([0, 1, 0], [2, 2, 2])


def test_two_processes_find_what_one_does():
    one, two = (quietly(op="merge_states", jobs=jobs) for jobs in (1, 2))
    for name in ("skus", "random_problems", "ok"):
        assert one[name] == two[name], name
    assert (one["effort"]["jobs"], two["effort"]["jobs"]) == (1, 2)
