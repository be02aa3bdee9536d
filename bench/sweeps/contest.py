"""One random problem: our result is checked, then our kernel and the peers are timed.

A problem that moves few bytes is timed as one launch in a CUDA graph with many launches, with a warm L2. Other problems are
timed with a flushed L2, alternating with the peers. A peer that cannot run, or has a different result, gets no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bench import interleaved, maps, rows
from bench.decode import IN_A_GRAPH, time_graph
from bench.interleaved import Contender
from bench.maps import Call, Problem
from opfacade import Preference

IN_GRAPHS = 2**22  # bytes
COMPILED_EVERY = 3  # torch.compile is a peer of every n-th problem, because it compiles for seconds
REFUSALS = (RuntimeError, ValueError, TypeError)
SPENT: dict[str, float] = {}  # seconds of the run so far, by phase


@contextmanager
def spending(what: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        SPENT[what] = SPENT.get(what, 0.0) + time.monotonic() - started


def has_compiled(index: int) -> bool:
    return index % COMPILED_EVERY == 0


def peers(problem: Problem, index: int) -> Iterator[tuple[str, Callable[[Any], Call]]]:
    """The peers of bench.maps; torch.compile is used for only some problems."""
    return (one for one in maps.peers(problem, "cuda") if one[0] != "torch.compile" or has_compiled(index))


def joined(problem: Problem, args: Any, wanted: list[torch.Tensor], index: int) -> Iterator[tuple[str, Call | str]]:
    """{peer: its call, or the reason why it has none}."""
    for name, call_of in peers(problem, index):
        try:
            agrees = rows.agrees(problem, call_of, wanted, "cuda")
            yield name, call_of(args) if agrees else "its result is not ours"
        except REFUSALS as error:
            yield name, f"it cannot run: {str(error)[:200]}"


def times(calls: dict[str, Call], moved: int) -> dict[str, float]:
    """Microseconds of each."""
    if moved <= IN_GRAPHS:
        return {name: round(time_graph([call] * IN_A_GRAPH)["median"], 3) for name, call in calls.items()}
    found = interleaved.timed([Contender({"who": name}, call) for name, call in calls.items()], interleaved.DIRTY)
    return {row["who"]: round(row["us"]["median"], 3) for row in found}


def measured(problem: Problem, index: int) -> dict[str, Any]:
    """The row of a problem: the microseconds of all contenders, and the ratio of the fastest peer's time to ours."""
    with spending("check"):
        args = maps.fresh(problem, "cuda")
        plan, error = maps.checked(problem, args, Preference(backend="cuda"))
        wanted = [tensor.clone() for tensor in maps.results(problem.descriptor, args)]
    moved = maps.moved(problem.descriptor, args)
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda") if plan.workspace_size else None
    calls: dict[str, Call] = {"opfacade": lambda: plan.run(args, workspace)}
    refused = {}
    with spending("peers"):
        for name, found in joined(problem, args, wanted, index):
            if isinstance(found, str):
                refused[name] = found
            else:
                calls[name] = found
    with spending("timing"):
        us = times(calls, moved)
    row: dict[str, Any] = {"problem": problem.name, "bytes": moved, "us": us, "sku": plan.sku.id, "error_over_bound": error}
    best = min((time for name, time in us.items() if name != "opfacade"), default=None)
    row |= {"graph": True} if moved <= IN_GRAPHS else {}
    row |= {"ratio": round(best / us["opfacade"], 3)} if best is not None else {}
    return row | ({"refused": refused} if refused else {})
