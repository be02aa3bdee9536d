"""Contenders for one problem are timed alternately in random order, so that clocks and temperature affect all equally. If they
are timed one after the other, times of the same kernel differ by up to 8 % when power is the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opfacade.testing import timing as bench
from opfacade.tune.measure import MeasureEffort, race

SAMPLES, WARMUP = 30, 3
DIRTY = {"us": False}  # name of a time: whether other memory is read after L2 was overwritten
BOTH = {"dirty_us": False, "clean_us": True}


@dataclass(frozen=True)
class Contender:
    """A contender: its facts before timing, and its call. host: samples of host time of a call, 0 for none."""

    row: dict[str, Any]
    call: Callable[[], object]
    host: int = 0


def timed(contenders: Sequence[Contender], ways: Mapping[str, bool]) -> list[dict[str, Any]]:
    """The row of each contender with its times in microseconds. The host time is measured last, because it keeps the GPU
    busy."""
    calls = {str(i): contender.call for i, contender in enumerate(contenders)}
    found = [dict(contender.row) for contender in contenders]
    for name, clean in ways.items():
        for row, samples in zip(found, _samples(calls, clean).values(), strict=True):
            row[name] = bench._summary(samples).as_dict()
    for row, contender in zip(found, contenders, strict=True):
        if contender.host:
            row["run_host_us"] = bench.time_host(contender.call, samples=contender.host).median
    return found


def _samples(calls: Mapping[str, Callable[[], object]], clean: bool) -> dict[str, list[float]]:
    def timer(call: Callable[[], object]) -> float:
        return bench.time_gpu(call, samples=1, warmup=0, clean=clean).median

    for call in calls.values():
        for _ in range(WARMUP):
            call()
    return race(calls, timer, MeasureEffort(least=SAMPLES, most=SAMPLES, hopeless=float("inf"), early=False))
