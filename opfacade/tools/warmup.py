"""Builds the kernels of many descriptors ahead of time, several at once, so that no request waits for a compiler."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

from opfacade import jit
from opfacade.base import strict_json
from opfacade.core.descriptor import Descriptor
from opfacade.core.preference import Preference
from opfacade.core.target import Target
from opfacade.errors import OpfacadeError
from opfacade.jit import cache
from opfacade.jit.cache.store import read_meta
from opfacade.jit.spec import JitSpec
from opfacade.plan import Plan
from opfacade.tools import progress
from opfacade.tools.workload import read

# The expected seconds of a build if the cache has no similar build. Used for display only.
_USUAL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class WarmupStep:
    """The state of one binary in a warm-up. state: "build" when its build begins; then "built", "cached" or "failed", with
    `error`."""

    sku: str
    state: str
    expected_seconds: float
    seconds: float = 0.0
    error: OpfacadeError | None = None


Report = Callable[[WarmupStep], None]


def warmup(
    descriptors: Iterable[Descriptor[Any]],
    target: Target | None = None,
    prefer: Preference | None = None,
    jobs: int | None = None,
    report: Report | None = None,
) -> tuple[WarmupStep, ...]:
    """Builds the kernels of plans for `descriptors` and publishes them in the cache. Loads nothing and needs no GPU.

    Descriptors that share a binary are built once. jobs: parallel builds (default: the number of CPUs). report: called when a
    build begins and ends, one call at a time. Without it, a line on stderr shows the progress, on a terminal or with
    OPFACADE_PROGRESS=1. A failed build does not stop the others: its error is in the returned step.
    """
    return warm([Plan.select(descriptor, prefer, target) for descriptor in descriptors], jobs, report)


def warm(plans: Iterable[Plan[Any]], jobs: int | None = None, report: Report | None = None) -> tuple[WarmupStep, ...]:
    """`warmup` for existing plans."""
    needed: dict[JitSpec, Plan[Any]] = {}
    for plan in plans:
        for spec in plan.jit_specs:
            needed.setdefault(spec, plan)
    line = progress.begun(len(needed)) if report is None else None
    announce, expected = _one_at_a_time((lambda step: line(step.state, step.sku)) if line else report), _expectation(needed)
    if needed:
        jit.identity.abi()  # imports torch before the threads start: concurrent imports may see a partly initialised module
    with ThreadPoolExecutor(max(1, min(jobs or os.cpu_count() or 1, len(needed) or 1))) as pool:
        steps = tuple(pool.map(lambda spec: _warm(spec, needed[spec], expected(spec), announce), needed))
    if line:
        line.close()
    return steps


def read_descriptors(text: str | bytes) -> tuple[Descriptor[Any], ...]:
    """The descriptors of a workload file. DescriptorError names the invalid entry."""
    return tuple(work.descriptor for work in read(text))


def _warm(spec: JitSpec, plan: Plan[Any], expected: float, announce: Report) -> WarmupStep:
    sku = plan.sku.id
    started = time.monotonic()
    try:
        if jit.is_built_for_plan(spec):
            step = WarmupStep(sku, "cached", expected)
        else:
            announce(WarmupStep(sku, "build", expected))
            jit.build_for_plan(spec, allow_build=plan.preference.jit == "build", label=sku)
            step = WarmupStep(sku, "built", expected, time.monotonic() - started)
    except OpfacadeError as error:
        step = WarmupStep(sku, "failed", expected, time.monotonic() - started, error)
    announce(step)
    return step


def _one_at_a_time(report: Report | None) -> Report:
    lock = threading.Lock()

    def announce(step: WarmupStep) -> None:
        if report is not None:
            with lock:
                report(step)

    return announce


def _expectation(needed: Iterable[JitSpec]) -> Callable[[JitSpec], float]:
    """The expected seconds of a build: the median of this template's builds in the cache, otherwise of all builds."""
    seen: dict[str, list[float]] = {}
    for path in (cache.root() / "obj").glob("*/*/meta.json"):
        try:
            facts = read_meta(path.parent)
            template, seconds = strict_json.loads(facts["spec"])[1], float(facts["seconds"])
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            continue
        seen.setdefault(str(template), []).append(seconds)
    every = [seconds for group in seen.values() for seconds in group] or [_USUAL_SECONDS]
    usual = {spec: median(seen.get(spec.template, every)) for spec in needed}
    return usual.__getitem__
