"""Compiles our kernels and the peers' in several processes, before anything is timed.

The results are in caches on disk (of opfacade, inductor and FlashInfer), from which the timing process loads them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bench import maps
from bench.maps import Problem
from bench.sweeps import contest
from opfacade import Plan, Preference

PROCESSES = max(4, min(28, (os.cpu_count() or 4) - 2))  # each process compiles a part of the problems; two cores stay free


def share(problems: Sequence[Problem], part: int, peers: bool = True) -> None:
    """Compiles the part of one process. A peer that cannot run is recorded later, by the timing."""
    for index, problem in enumerate(problems):
        if index % PROCESSES != part:
            continue
        Plan.select(problem.descriptor, Preference(backend="cuda")).compile()
        for name, call_of in contest.peers(problem, index) if peers else ():
            if name != "torch eager":
                _once(problem, call_of)
        torch.cuda.empty_cache()
        torch.compiler.reset()


def _once(problem: Problem, call_of: Callable[[Any], maps.Call]) -> None:
    try:
        call_of(maps.fresh(problem, "cuda"))()
        torch.cuda.synchronize()
    except contest.REFUSALS as error:
        print(f"{problem.name}: {str(error)[:200]}", file=sys.stderr)


def by_processes(words: Sequence[str], seconds: float) -> None:
    """Runs the same command in each process, with different parts. A process that takes longer than `seconds` is terminated,
    and its remaining kernels are compiled later."""
    ends = time.monotonic() + seconds
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, "-m", "bench.sweep", *words, "--part"]
    started = [subprocess.Popen([*command, str(part)], env=environment) for part in range(PROCESSES)]
    for process in started:
        try:
            process.wait(timeout=max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
