"""Times calls that all ranks make together: each in a graph, alternately; the slowest rank's time counts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from bench.ranks.process import Ranks
from opfacade.errors import OpfacadeError

SAMPLES, COPIES = 7, 10
FAILURES = (OpfacadeError, RuntimeError, OSError, ValueError, TypeError, AttributeError, NotImplementedError)
Calls = Mapping[str, Callable[[], Any]]


def race(ranks: Ranks, calls: Calls, copies: int = COPIES) -> dict[str, Any]:
    """{name: {us, low, high}} for calls with correct results, otherwise {name: {"failed": reason}}."""
    timers: dict[str, Callable[[], float]] = {}
    found: dict[str, Any] = {}
    for name, call in calls.items():
        try:
            timers[name] = _timer(ranks, call, copies)
        except FAILURES as error:
            found[name] = {"failed": str(error).splitlines()[0][:200] if str(error) else type(error).__name__}
        known = ranks.slowest([float(name not in timers)])[0]
        if known and name in timers:
            del timers[name]
            found[name] = {"failed": "on another rank"}
    samples = _samples(ranks, timers)
    for name, values in samples.items():
        found[name] = {"us": statistics.median(values), "low": min(values), "high": max(values)}
    return found


def _samples(ranks: Ranks, timers: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    own: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(SAMPLES):
        for name, timer in timers.items():
            ranks.meet()
            own[name].append(timer())
    return {name: ranks.slowest(values) for name, values in own.items()}


def _timer(ranks: Ranks, call: Callable[[], Any], copies: int) -> Callable[[], float]:
    for _ in range(2):
        call()
    ranks.meet()
    return _by_clock(call, copies) if ranks.cpu else _by_graph(call, copies)


def _by_clock(call: Callable[[], Any], copies: int) -> Callable[[], float]:
    def timed() -> float:
        start = time.perf_counter()
        for _ in range(copies):
            call()
        return (time.perf_counter() - start) / copies * 1e6

    return timed


def _by_graph(call: Callable[[], Any], copies: int) -> Callable[[], float]:
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(copies):
            call()
    graph.replay()
    torch.cuda.synchronize()

    def timed() -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()  # synchronises the ranks: their hosts start apart
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / copies * 1e3

    return timed
