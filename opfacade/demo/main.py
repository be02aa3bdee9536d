"""The loop of the demo: schedule, run, check, report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opfacade.demo import report
from opfacade.demo.lengths import Length, page_counts
from opfacade.demo.pages import PageAllocator
from opfacade.demo.scheduler import Scheduler, ServingStep
from opfacade.demo.server import Ran, Server
from opfacade.demo.settings import Settings
from opfacade.errors import DescriptorError


@dataclass
class Demo:
    """The state of one demo: a pool of pages, a scheduler and a server. `steps()` runs it, one step at a time."""

    settings: Settings
    lengths: Sequence[Length]
    runs: list[Ran] = field(default_factory=list)

    def __post_init__(self) -> None:
        s = self.settings
        self.lengths = [length.capped(s.max_generated) for length in self.lengths]
        needed = page_counts(self.lengths, s.page_size)
        self.pool = PageAllocator(s.pages or max(max(needed), sum(needed) // 2))
        if max(needed) > self.pool.num_pages:
            message = f"demo.run: pages expected at least {max(needed)}, for the longest request, got {s.pages}. [OPF-D031]"
            raise DescriptorError(message, code="OPF-D031", op="demo", stage="run")
        self.scheduler = Scheduler(self.lengths, self.pool, s.page_size, s.chunk)
        self.server = Server(s, self.pool.num_pages)

    def steps(self) -> Iterator[ServingStep]:
        """Run until every request is done, or max_steps."""
        while (step := self.scheduler.next_step()) is not None:
            self.runs += self.server.run(step)
            self.scheduler.retire()
            yield step
            if step.number == self.settings.max_steps:
                return

    @property
    def sound(self) -> bool:
        """No result was beyond its bound."""
        return report.worst(self.runs) <= 1

    def totals(self) -> dict[str, Any]:
        rows = {op: sum(ran.rows for ran in self.runs if ran.plan.sku.op == op) for op in {r.plan.sku.op for r in self.runs}}
        return {
            "steps": self.runs[-1].step if self.runs else 0,
            "prompt_tokens": rows.get("paged_prefill", 0),
            "decode_tokens": rows.get("paged_decode", 0),
            "drawn_tokens": rows.get("sample", 0),
            "requests_completed": self.scheduler.completed,
            "requests": len(self.lengths),
            "pages": self.pool.num_pages,
            "pages_in_use": self.pool.num_pages - self.pool.free,
            "operator_seconds": sum(ran.seconds for ran in self.runs),
            "checked_elements": sum(ran.report.elements for ran in self.runs),
            "worst_error_over_bound": report.largest(self.runs),
        }


def run(settings: Settings, lengths: Sequence[Length], say: Callable[[str], None], json_path: Path | None = None) -> bool:
    """Serve the requests and report through `say`. True when every result was within its bound."""
    demo, skus, started = Demo(settings, lengths), report.Skus(), time.monotonic()
    for line in _opening(demo):
        say(line)
    say("\n" + report.HEADER)
    pending = 0
    for step in demo.steps():
        if step.number % settings.every == 0:
            _say_block(demo.runs[pending:], skus, say)
            pending = len(demo.runs)
    _say_block(demo.runs[pending:], skus, say)
    for line in _closing(demo, skus):
        say(line)
    if json_path is not None:
        json_path.write_text(json.dumps(report.as_dict(settings, demo.totals(), demo.runs), indent=1))
    say("\n" + report.verdict(demo.totals(), time.monotonic() - started))
    return demo.sound


def _say_block(runs: Sequence[Ran], skus: report.Skus, say: Callable[[str], None]) -> None:
    for line in report.block(runs, skus) if runs else ():
        say(line)


def _opening(demo: Demo) -> Iterator[str]:
    s = demo.settings
    shape = f"{s.heads} query heads, {s.kv_heads} kv heads, head_dim {s.head_dim}, {s.dtype}"
    yield f"{len(demo.lengths)} requests on {s.device}: {shape}"
    yield f"{demo.pool.num_pages} pages of {s.page_size} tokens; steps of up to {s.chunk} tokens"
    if s.max_generated is not None:
        yield f"answers are capped at {s.max_generated} tokens (--max-generated)"
    yield f"checked: {s.checked_rows} query rows of every attention call against an fp64 oracle, every appended row bit by bit"
    yield "the first step of a block draws tokens, once more with its requests in reverse order: they must be the same"
    yield f"every {s.every} steps new rows go through a whole layer: norm, qkv_prepare, attention, norm, activation, quantise"
    yield "error/bound: the worst error of a block over what its kernel promises, at most 1 is a pass; ms: median of a call"


def _closing(demo: Demo, skus: report.Skus) -> Iterator[str]:
    yield "\nSKUs"
    yield from skus.lines()
    yield "\nTelemetry"
    yield from report.counters(skus)
    yield "\nTotals"
    yield from report.lines(demo.totals())
    if not demo.sound:
        bad = max(demo.runs, key=lambda ran: report.worst([ran]))
        yield f"\nWRONG: step {bad.step} {bad.plan.sku.id}: {bad.report.where}"
    if demo.settings.device == "cpu":
        yield "\nOn an H200 (sm_90a), with the compiler that is here, the same descriptors run"
        yield from report.on_a_gpu(demo.runs)
