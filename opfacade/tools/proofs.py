"""Runs the proofs of `verify` one after another, or in several processes that share the GPUs of this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from opfacade.errors import Issue, from_issues

Say = Callable[[str], None]
Proof = Callable[[Say], Any]  # a function that returns its result; it must be picklable if there are several processes


def results(proofs: Sequence[Proof], jobs: int, say: Say) -> Iterator[Any]:
    """Yields the result of each proof, in order. With several processes, `say` gets a proof's lines when the proof ends.

    PlanStateError if a process ends before its proof, for example because memory runs out.
    """
    if jobs == 1:
        yield from (proof(say) for proof in proofs)
        return
    spawn, done = multiprocessing.get_context("spawn"), 0
    with ProcessPoolExecutor(jobs, spawn, _start, (spawn.Value("i", 0), jobs)) as pool:
        try:
            for lines, result in pool.map(_with_lines, proofs):
                for line in lines:
                    say(line)
                done += 1
                yield result
        except BrokenProcessPool:
            got, hint = (
                f"one that ended with {done} of {len(proofs)} proofs done",
                "Look for a lack of memory, or run with one job.",
            )
            issue = Issue("OPF-V006", "jobs", "processes that live until all tests are done", got, hint, kind="PlanStateError")
            raise from_issues("verify", "verify", [issue]) from None


def _with_lines(proof: Proof) -> tuple[list[str], Any]:
    lines = list[str]()
    return lines, proof(lines.append)


def _start(started: Any, jobs: int) -> None:
    """Assigns each process the next GPU and its share of the CPU cores."""
    import torch

    with started.get_lock():
        number, started.value = started.value, started.value + 1
    if torch.cuda.is_available():
        torch.cuda.set_device(number % torch.cuda.device_count())
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // jobs))
