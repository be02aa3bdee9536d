"""Several processes compile our kernels and those of the peers at once, before anything is timed.

Both lie in caches on disk then (opfacade's, inductor's, FlashInfer's), where the process that times finds them.
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

PROCESSES = max(4, min(28, (os.cpu_count() or 4) - 2))  # each has a part of the problems; two cores are left


def share(problems: Sequence[Problem], part: int, peers: bool = True) -> None:
    """Compile what one of the processes has to; a peer that cannot run is recorded when it is timed."""
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
    """The same command in each process, with its part. All have `seconds` together; one that takes longer is ended, and its
    rest compiled later."""
    ends = time.monotonic() + seconds
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, "-m", "bench.sweep", *words, "--part"]
    started = [subprocess.Popen([*command, str(part)], env=environment) for part in range(PROCESSES)]
    for process in started:
        try:
            process.wait(timeout=max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
