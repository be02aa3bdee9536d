"""Times candidates against each other: round-robin, with a cold cache before each call, until the fastest is clear.

A timer is any function that makes one call and returns its microseconds: on a GPU it uses CUDA events and flushes L2, on the
CPU it uses a clock, and in tests it reads a list of numbers. With round-robin, a drift of clocks or temperature affects all
candidates equally.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from opfacade.select.decision import Measured, clear, summary

Call = Callable[[], object]
Timer = Callable[[Call], float]


@dataclass(frozen=True, slots=True)
class MeasureEffort:
    """least, most: the minimum and maximum number of rounds. settled: the noise below which sampling stops. hopeless: a
    candidate slower than this multiple of the best time is dropped. early: stop as soon as it is clear which of two candidates
    is faster, even if their times are still noisy."""

    least: int = 12
    most: int = 60
    settled: float = 0.005
    hopeless: float = 1.5
    early: bool = True


def host_timer(call: Call) -> float:
    """Wall time of one call on the CPU, after reading as much memory as a last-level cache holds."""
    _cold_memory()
    started = time.perf_counter_ns()
    call()
    return max(time.perf_counter_ns() - started, 1) * 1e-3


def device_timer(call: Call) -> float:
    """Device time of one call between two CUDA events. L2 is flushed, and the device is busy before, so the launch overhead is
    hidden."""
    from opfacade.testing.timing import time_gpu

    return max(time_gpu(call, samples=1, warmup=0).median, 1e-3)


_memory: list[bytearray] = []


def _cold_memory() -> None:
    if not _memory:
        _memory.append(bytearray(32 << 20))
    sum(_memory[0][::4096])


def race(
    calls: Mapping[str, Call], timer: Timer, effort: MeasureEffort | None = None, incumbent: str | None = None
) -> dict[str, list[float]]:
    """{name: the samples of the call}. After `least` rounds, calls that are much slower than the best are dropped."""
    how, order = effort or MeasureEffort(), random.Random(0)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    running = list(calls)
    for name in running:
        timer(calls[name])  # the first call includes lazy initialisation, so it is not a sample
    for turn in range(1, how.most + 1):
        for name in order.sample(running, len(running)):
            samples[name].append(timer(calls[name]))
        if turn >= how.least:
            best = min(summary(s)[0] for s in samples.values())
            running = [name for name in running if summary(samples[name])[0] <= how.hopeless * best]
            if _over({name: samples[name] for name in running}, how, incumbent):
                break
    return samples


def _over(samples: Mapping[str, list[float]], how: MeasureEffort, incumbent: str | None) -> bool:
    measured = [measure(name, s, 0.0) for name, s in samples.items()]
    # With more than two candidates, the order of near-equal ones matters too, so sampling continues.
    early = how.early and len(measured) <= 2 and clear(measured, incumbent)
    return early or all(m.noise <= how.settled for m in measured)


def measure(name: str, samples: list[float], worst: float) -> Measured:
    middle, noise = summary(samples)
    return Measured(sku=name, median_us=middle, noise=noise, samples=len(samples), worst=worst)
