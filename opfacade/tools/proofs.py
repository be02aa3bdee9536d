"""Proofs of `verify` one after another, or in several processes that share the GPUs of this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

Say = Callable[[str], None]
Proof = Callable[[Say], Any]  # returns its result; it can be pickled where there are several processes


def results(proofs: Sequence[Proof], jobs: int, say: Say) -> Iterator[Any]:
    """The result of each proof, in the order of the proofs. Lines of a proof are passed to `say` when its result is there."""
    if jobs == 1:
        yield from (proof(say) for proof in proofs)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, _start, (spawn.Value("i", 0), jobs)) as pool:
        for lines, result in pool.map(_with_lines, proofs):
            for line in lines:
                say(line)
            yield result


def _with_lines(proof: Proof) -> tuple[list[str], Any]:
    lines = list[str]()
    return lines, proof(lines.append)


def _start(started: Any, jobs: int) -> None:
    """Each process takes the next GPU, and its share of the cores."""
    import torch

    with started.get_lock():
        number, started.value = started.value, started.value + 1
    if torch.cuda.is_available():
        torch.cuda.set_device(number % torch.cuda.device_count())
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // jobs))
