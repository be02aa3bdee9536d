"""Proofs of `verify` in several processes: the same results, in their order, with their lines; faults reach the caller."""

import os
import time
from functools import partial

import pytest

from opfacade.tools import proofs
from tests.tools.test_verify import quietly


def proof(number, say):
    time.sleep(0.3 * (number == 0))  # the first ends last
    say(f"proof {number}")
    if number == 7:
        raise LookupError("seven")
    return number, os.getpid()


def found(numbers, jobs):
    said = []
    return list(proofs.results([partial(proof, number) for number in numbers], jobs, said.append)), said


def test_results_and_lines_are_in_the_order_of_the_proofs():
    for jobs in (1, 2):
        results, said = found(range(4), jobs)
        assert [number for number, _ in results] == [0, 1, 2, 3]
        assert said == [f"proof {number}" for number in range(4)]
        assert (os.getpid() in {process for _, process in results}) == (jobs == 1)


def test_a_fault_in_another_process_reaches_the_caller():
    with pytest.raises(LookupError, match="seven"):
        found((1, 7), 2)


def test_two_processes_find_what_one_does():
    one, two = (quietly(op="merge_states", jobs=jobs) for jobs in (1, 2))
    for name in ("skus", "random_problems", "ok"):
        assert one[name] == two[name], name
