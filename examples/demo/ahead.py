"""Compiles everything that a demo will run before it begins, on all cores, so that no kernel is compiled while it serves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from examples.demo.lengths import Length
from examples.demo.problems import Problems, planned
from examples.demo.settings import Settings
from opfacade.core.target import Target
from opfacade.plan import Plan
from opfacade.tools.warmup import WarmupStep, warm


def plans(settings: Settings, lengths: Sequence[Length], num_pages: int, target: Target) -> tuple[list[Plan[Any]], int]:
    """A plan of each SKU that the demo runs, and the number of its steps."""
    problems, steps = Problems(settings, num_pages), 0
    found: dict[str, Plan[Any]] = {}
    for step in planned(settings, lengths, num_pages):
        steps = step.number
        for descriptor in problems.of(step):
            plan: Plan[Any] = Plan.select(descriptor, target=target)
            found.setdefault(plan.sku.id, plan)
    return list(found.values()), steps


def compile_all(chosen: Sequence[Plan[Any]], show: Callable[[str], None]) -> str:
    """Builds the missing kernels, with a line of progress for each. Returns a summary sentence; "" without kernels."""
    kernels = {spec for plan in chosen for spec in plan.jit_specs}
    if not kernels:
        return ""
    began, ended, cores = time.monotonic(), [0], min(os.cpu_count() or 1, len(kernels))

    def report(step: WarmupStep) -> None:
        if step.state != "build":
            ended[0] += 1
            show(f"compiling on {cores} cores: {ended[0]} of {len(kernels)} kernels ready")

    steps = warm(chosen, report=report)
    for step in steps:
        if step.error is not None:
            raise step.error
    built = sum(step.state == "built" for step in steps)
    seconds = time.monotonic() - began
    return f"{built} of {len(kernels)} kernels compiled on {cores} cores in {seconds:.0f} s, the others were cached"
