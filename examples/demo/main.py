"""The loop of the demo: schedule, run, check, report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.demo import ahead, report
from examples.demo.lengths import Length, page_counts
from examples.demo.pages import PageAllocator
from examples.demo.progress import Progress
from examples.demo.scheduler import Scheduler, ServingStep
from examples.demo.server import Ran, Server, target_of
from examples.demo.settings import Settings


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
            raise ValueError(f"demo.run: --pages expected at least {max(needed)}, for the longest request, got {s.pages}.")
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
        """Whether every result was within its error bound."""
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


@dataclass
class Output:
    """The output of a demo. say: prints a line. progress: the stream for the line of progress. verbose: also print every block
    and SKU."""

    say: Callable[[str], None]
    progress: Progress
    verbose: bool = False
    json_path: Path | None = None


def run(settings: Settings, lengths: Sequence[Length], out: Output) -> bool:
    """Serves the requests and reports. True if every result was within its bound."""
    demo, skus, started = Demo(settings, lengths), report.Skus(), time.monotonic()
    for line in _opening(demo, out.verbose):
        out.say(line)
    chosen, steps = ahead.plans(settings, demo.lengths, demo.pool.num_pages, target_of(settings))
    compiled = ahead.compile_all(chosen, out.progress.show)
    out.progress.clear()
    for line in (compiled, "\n" + report.HEADER if out.verbose else ""):
        if line:
            out.say(line)
    _serve(demo, steps, skus, out)
    for line in _closing(demo, skus) if out.verbose else ("", *report.table(demo.runs)):
        out.say(line)
    for line in _wrong(demo):
        out.say(line)
    if out.json_path is not None:
        out.json_path.write_text(json.dumps(report.as_dict(settings, demo.totals(), demo.runs), indent=1))
    out.say("\n" + report.served(demo.totals()))
    out.say(report.verdict(demo.totals(), time.monotonic() - started))
    return demo.sound


def _serve(demo: Demo, steps: int, skus: report.Skus, out: Output) -> None:
    """Runs all steps, with the line of progress, and with `verbose` a block of lines every few steps."""
    pending = 0
    for step in demo.steps():
        out.progress.show(f"step {step.number} of {steps}, {demo.scheduler.completed} of {len(demo.lengths)} requests served")
        if step.number % demo.settings.every == 0 or step.number == steps:
            out.progress.clear()
            for line in report.block(demo.runs[pending:], skus) if out.verbose and demo.runs[pending:] else ():
                out.say(line)
            pending = len(demo.runs)


def _opening(demo: Demo, verbose: bool) -> Iterator[str]:
    s = demo.settings
    shape = f"{s.heads} query heads, {s.kv_heads} KV heads, head_dim {s.head_dim}, {s.dtype}"
    yield f"{len(demo.lengths)} requests on {s.device}: {shape}"
    yield f"{demo.pool.num_pages} pages of {s.page_size} tokens; steps of up to {s.chunk} tokens"
    if s.max_generated is not None:
        yield f"answers are capped at {s.max_generated} tokens (--max-generated)"
    yield f"checked: {s.checked_rows} query rows of every attention call against an fp64 oracle, every appended row bit by bit"
    if verbose:
        yield "the first step of a block draws tokens, once more with its requests in reverse order: they must be the same"
        yield f"every {s.every} steps rows go through a whole decoder layer, whose logits are held to plain torch in f64"
        yield "error/bound: the worst error of a block over what its kernel promises, at most 1 is a pass; ms: median of a call"


def _closing(demo: Demo, skus: report.Skus) -> Iterator[str]:
    yield "\nSKUs"
    yield from skus.lines()
    yield "\nTelemetry"
    yield from report.counters(skus)
    yield "\nTotals"
    yield from report.lines(demo.totals())
    if demo.settings.device == "cpu":
        yield "\nOn an H200 (sm_90a), with the compiler that is here, the same descriptors run"
        yield from report.on_a_gpu(demo.runs)


def _wrong(demo: Demo) -> Iterator[str]:
    if not demo.sound:
        bad = max(demo.runs, key=lambda ran: report.worst([ran]))
        yield f"\nWRONG: step {bad.step} {bad.plan.sku.id}: {bad.report.where}"
