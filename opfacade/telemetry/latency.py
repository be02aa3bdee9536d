"""Sampled run times per SKU: times every n-th run, on a GPU by two CUDA events that are read once they have completed.

Never waits: incomplete pairs of events stay in a short queue until the next sample. A launch under CUDA graph capture is not
timed, since its events would be part of the graph. If one thread captures in torch's default mode, "global", while others run
plans, leave sampling off: an event created by another thread would break the capture.
"""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any

from opfacade import env, telemetry
from opfacade.base.capture import capturing, device_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from opfacade.telemetry.protocols import Identified

    Launcher = Callable[[Any, Any], None]

# Pairs of events that may be incomplete; if there are more, the oldest pair is dropped.
_PENDING = 64


class _Pairs(deque[Any]):
    """Incomplete pairs of events. All queues are in a set, so they are compared by identity."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


_queues: weakref.WeakSet[_Pairs] = weakref.WeakSet()


def wrap(launch: Launcher, sku: Identified) -> Launcher:
    """`launch` itself if nothing is sampled, otherwise a launcher that times every n-th call."""
    share = env.telemetry_sample()
    if not share:
        return launch
    timed = _on_host(launch, sku) if sku.backend == "reference" else _on_device(launch, sku)
    return _every(max(1, round(1 / share)), launch, timed)


def _every(n: int, launch: Launcher, timed: Launcher) -> Launcher:
    calls = count()

    def sometimes(args: object, workspace: object) -> None:
        (launch if next(calls) % n else timed)(args, workspace)

    return sometimes


def _on_host(launch: Launcher, sku: Identified) -> Launcher:
    stats = telemetry.stats(sku.id)

    def timed(args: object, workspace: object) -> None:
        started = time.perf_counter_ns()
        launch(args, workspace)
        stats.time((time.perf_counter_ns() - started) * 1e-3)

    return timed


def _on_device(launch: Launcher, sku: Identified) -> Launcher:
    stats = telemetry.stats(sku.id)
    pending = _Pairs(maxlen=_PENDING)
    _queues.add(pending)

    def timed(args: object, workspace: object) -> None:
        # During a capture no event is used, because even a query would break the capture.
        device = device_of(args)
        if capturing(device):
            launch(args, workspace)
            return
        start = _tried(lambda: _started(pending, stats, device))
        launch(args, workspace)
        if start is not None:
            _tried(lambda: pending.append((start, _recorded(device))))

    return timed


def _tried(make: Callable[[], Any]) -> Any:
    """The result of `make`. If torch fails, the failure is counted and the result is None; the launch itself reports a broken
    context."""
    try:
        return make()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0][:200]
        telemetry.drop("latency_samples_dropped", f"OPFACADE_TELEMETRY_SAMPLE: no time was measured: {reason}.")
        return None


def _started(pending: deque[Any], stats: telemetry.SkuStats, device: torch.device | None) -> Any:
    """Reads completed pairs of earlier launches, then records the event before a launch."""
    _collect(pending, stats)
    return _recorded(device)


def _recorded(device: torch.device | None) -> Any:
    """An event on the current stream of the tensors' device, which is the stream of the launch."""
    import torch

    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _collect(pending: deque[Any], stats: telemetry.SkuStats) -> None:
    """Reads completed pairs, beginning with the oldest."""
    while pending:
        # Other threads may run this too: each thread reads the pairs that it removes, or puts them back.
        try:
            pair = pending.popleft()
        except IndexError:
            return
        start, stop = pair
        if not stop.query():
            pending.appendleft(pair)
            return
        stats.time(start.elapsed_time(stop) * 1e3)


def _after_fork() -> None:
    """Keeps the parent's events alive forever, because torch would destroy them by a CUDA call, which fails in a forked
    child."""
    for pending in list(_queues):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(tuple(pending)))
        pending.clear()


os.register_at_fork(after_in_child=_after_fork)
