"""Counters per SKU of selections, refusals, builds and runs, and events for subscribers.

Counters are always on and cost one C-level increment per run; events are created only while there is a subscriber."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from opfacade.base import notices
from opfacade.base.fork_lock import ForkLock
from opfacade.errors import ArgumentTypeError, DroppedWarning
from opfacade.telemetry import waiting
from opfacade.telemetry.histogram import Latency
from opfacade.telemetry.protocols import Identified, Watched

Event = dict[str, Any]
Sink = Callable[[Event], None]

MAX_FAILURES = 10  # a listener is removed after this many consecutive failures
COUNTED = ("selects", "runs", "builds", "loads", "cache_hits", "fallbacks", "spills")


class TelemetrySink(Protocol):
    """Receives plans and arguments, not only event text. It must be fast; its exceptions are treated as in `subscribe`."""

    def selected(self, plan: Any) -> None: ...

    def ran(self, plan: Any, args: Any) -> None: ...


class Counter:
    """A counter whose `add` is one atomic C call, so that no thread's increment is lost. Plans keep a reference to `add`."""

    __slots__ = ("_before", "_count", "add")

    def __init__(self) -> None:
        self._count, self._before = itertools.count(), 0
        self.add: Callable[[], int] = self._count.__next__

    def value(self) -> int:
        # In every supported Python, repr is the only way to read itertools.count without advancing it.
        return int(repr(self._count)[len("count(") : -1]) - self._before

    def forget(self) -> None:
        """Resets the counter to 0."""
        self._before += self.value()


class SkuStats:
    """The counters of one SKU.

    cache_hits: number of loads without a build. fallbacks: selections of the reference because no kernel fits. spills: loads of
    slow code.
    """

    __slots__ = (*COUNTED, "build_seconds", "forgotten", "latency")

    def __init__(self) -> None:
        self.selects, self.runs, self.builds, self.loads = Counter(), Counter(), Counter(), Counter()
        self.cache_hits, self.fallbacks, self.spills = Counter(), Counter(), Counter()
        self.build_seconds = 0.0
        self.latency: Latency | None = None
        self.forgotten = False

    def forget(self) -> None:
        for name in COUNTED:
            getattr(self, name).forget()
        self.build_seconds, self.latency, self.forgotten = 0.0, None, True

    def is_forgotten(self) -> bool:
        """Whether nothing was counted since the last `forget`."""
        return self.forgotten and self.latency is None and not any(getattr(self, name).value() for name in COUNTED)

    def time(self, microseconds: float) -> None:
        """Adds one sampled run time."""
        latency = self.latency
        if latency is None:
            with _lock:
                latency = self.latency = self.latency or Latency()
        latency.add(microseconds)  # uses the local variable, because `forget` may have cleared the attribute

    def as_dict(self) -> dict[str, Any]:
        counted: dict[str, Any] = {name: getattr(self, name).value() for name in COUNTED}
        latency = self.latency
        timed = {} if latency is None else {"latency": latency.as_dict()}
        return {**counted, "build_seconds": self.build_seconds, **timed}


_lock = ForkLock()
_stats: dict[str, SkuStats] = {}
_refusals: dict[str, Counter] = {}
_happened: dict[str, Counter] = {}
_sinks: tuple[_Listener, ...] = ()
_recorders: tuple[_Listener, ...] = ()
# True if any sink receives single selects and runs. It is the only flag that a run reads.
_watched = False
_resets = 0


def stats(sku_id: str) -> SkuStats:
    """The counters of a SKU, created on first use."""
    found = _stats.get(sku_id)
    if found is None:
        with _lock:
            found = _stats.setdefault(sku_id, SkuStats())
    found.forgotten = False  # shown again in snapshots
    return found


def snapshot() -> dict[str, dict[str, Any]]:
    """`{sku_id: {"selects": n, "runs": n, "builds": n, "loads": n, "cache_hits": n, "fallbacks": n, "spills": n,
    "build_seconds": s}}` for every SKU seen; with a key "latency" where run times were sampled."""
    return {sku_id: found.as_dict() for sku_id, found in list(_stats.items()) if not found.is_forgotten()}


def refusals() -> dict[str, int]:
    """The number of refused candidates, by reason code."""
    return {code: counter.value() for code, counter in list(_refusals.items())}


def count_refusal(code: str) -> None:
    counter = _refusals.get(code)
    if counter is None:
        with _lock:
            counter = _refusals.setdefault(code, Counter())
    counter.add()


def count(name: str) -> None:
    """Counts an event that concerns no single SKU, such as "tuned_row_ignored"."""
    with _lock:
        counter = _happened.setdefault(name, Counter())
    counter.add()


def drop(name: str, what: str) -> None:
    """Counts a failed write and warns about the first one; runs do not fail."""
    count(name)
    notices.tell_once(name, f"{what} Further ones are counted: telemetry.counts()[{name!r}].", DroppedWarning)


def counts() -> dict[str, int]:
    """The counters that `count` increments."""
    return {name: counter.value() for name, counter in list(_happened.items())}


def count_build(sku_id: str, seconds: float) -> None:
    found = stats(sku_id)
    found.builds.add()
    with _lock:
        found.build_seconds += seconds


def count_fallback(sku: Identified) -> None:
    stats(sku.id).fallbacks.add()


def resets() -> int:
    """The number of resets; the counts contain only events after the last reset."""
    return _resets


def reset() -> None:
    """Resets all counters."""
    global _resets
    with _lock:
        _resets += 1
        for found in _stats.values():
            found.forget()
        _refusals.clear()
        _happened.clear()


class _Listener:
    """A sink or a recorder. Its exceptions are counted and reach no run."""

    __slots__ = ("failures", "told", "who")

    def __init__(self, who: Any) -> None:
        self.who, self.failures, self.told = who, 0, False

    def tell(self, call: Callable[..., None], *given: object) -> None:
        try:
            call(*given)
            self.failures = 0
        except Exception as error:  # a subscriber's code may raise any exception
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        count("listener_failures")
        if self.failures >= MAX_FAILURES:
            _dismiss(self)
            self._warn(error, "It is told no more")
        elif not self.told:
            self._warn(error, "Further ones are counted")
            self.told = True  # after the counting, because the warning may raise a RecursionError too

    def _warn(self, error: Exception, then: str) -> None:
        name = getattr(self.who, "__qualname__", type(self.who).__name__)
        reason = traceback.format_exception_only(error)[-1].strip()[:200]
        notices.tell(f"telemetry: {name} failed: {reason}. {then}: telemetry.counts().", DroppedWarning)


def subscribe(sink: Sink) -> Callable[[], None]:
    """Calls `sink(event)` for every event from now on; returns a function that unsubscribes it.

    Exceptions of a sink do not reach runs: they are counted as "listener_failures" in `counts()`, a sink's first failure warns
    (DroppedWarning), and a sink that fails ten times in a row is removed. ArgumentTypeError if `sink` is not callable."""
    _require("subscribe", "sink", "a callable", sink, callable(sink))
    return _add(sink, "_sinks")


def attach(recorder: TelemetrySink) -> Callable[[], None]:
    """Passes every selected or run plan to `recorder` from now on; returns a function that ends this. Failures are treated like
    those of a sink."""
    fits = all(callable(getattr(recorder, name, None)) for name in ("selected", "ran"))
    _require("attach", "recorder", "methods selected and ran", recorder, fits)
    return _add(recorder, "_recorders")


def _require(function: str, argument: str, expected: str, got: object, fits: bool) -> None:
    if not fits:
        message = f"telemetry.{function}: {argument} expected {expected}, got {type(got).__name__}. [OPF-E012]"
        raise ArgumentTypeError(message, code="OPF-E012", op="telemetry", stage=function)


def _add(who: Any, place: str) -> Callable[[], None]:
    """Adds a listener to `_sinks` or `_recorders`; returns the function that removes it."""
    listener = _Listener(who)
    with _lock:
        globals()[place] = (*globals()[place], listener)
        _watch()
    return lambda: _dismiss(listener)


def _dismiss(listener: _Listener) -> None:
    global _sinks, _recorders
    with _lock:
        _sinks = tuple(one for one in _sinks if one is not listener)
        _recorders = tuple(one for one in _recorders if one is not listener)
        _watch()


def _watch() -> None:
    global _watched
    _watched = bool(_sinks or _recorders)


def selected(plan: Watched) -> None:
    """Reports one selection."""
    for recorder in _recorders:
        recorder.tell(recorder.who.selected, plan)
    if _sinks:
        emit("select", sku=plan.sku.id, op=plan.descriptor.op)


def ran(plan: Watched, args: object) -> None:
    """Reports one run before its launch."""
    for recorder in _recorders:
        recorder.tell(recorder.who.ran, plan, args)
    if _sinks:
        emit("run", sku=plan.sku.id, op=plan.descriptor.op)


def listening() -> bool:
    return bool(_sinks)


def emit(event: str, **fields: object) -> None:
    """Passes `{"event": event, **fields}` to every sink; within `held_back`, at the end of the block. Events: select, refuse,
    build, spill, load, run."""
    told = {"event": event, **fields}
    if not waiting.holds(told):
        _tell(told)


def _tell(event: Event) -> None:
    for sink in _sinks:
        sink.tell(sink.who, dict(event))


def held_back() -> AbstractContextManager[None]:
    """Delays the events of this thread until the block ends; use it around a lock that a sink's calls may need."""
    return waiting.until_the_end(_tell)


@contextmanager
def record() -> Iterator[list[Event]]:
    """Collects the events of a block: `with telemetry.record() as r: ...` fills the list `r`."""
    events: list[Event] = []
    unsubscribe = subscribe(events.append)
    try:
        yield events
    finally:
        unsubscribe()
