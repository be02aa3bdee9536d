"""Output of the demo: a block of lines for every few steps, then SKUs, totals and the selections on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from examples.demo.server import Ran
from examples.demo.settings import Settings
from opfacade import telemetry
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.select.explanation import explain
from opfacade.tools.catalogue import promises

_SHORT = {
    "paged_kv_append": "append", "paged_prefill": "prefill", "paged_decode": "decode", "qkv_prepare": "qkv",
    "gated_activation": "gated", "quantize": "quant", "sample": "sample",
}  # fmt: skip
# Their bound is the spacing of the dtype, so an error over its bound is 0, 1, or more.
_ROUNDED = ("qkv_prepare",)
_LINE = "{:<9} {:<7} {:<44} {:<14} {:<9} {:<41} {:>11} {:>9}"
HEADER = _LINE.format("steps", "what", "work", "SKU", "backend", "guarantee", "error/bound", "ms")
_TYPICAL_GPU = "sm_90a"


class Skus:
    """Numbers the SKUs in the order they appear."""

    def __init__(self) -> None:
        self.seen: dict[str, KernelSku] = {}

    def short(self, sku: KernelSku) -> str:
        self.seen.setdefault(sku.id, sku)
        return f"[{list(self.seen).index(sku.id) + 1}] {sku.impl}@{sku.revision}"

    def lines(self) -> Iterator[str]:
        for number, sku_id in enumerate(self.seen, 1):
            yield f"  [{number}] {sku_id}"


def guarantee(sku: KernelSku) -> str:
    """The error model and the flags of a guarantee, in short words."""
    return " ".join((sku.precision_guarantee.error_model.id, *promises(sku.precision_guarantee)))


def worst(runs: Sequence[Ran]) -> float:
    """The largest error over its bound; infinite if any is NaN."""
    return max((math.inf if math.isnan(ran.report.worst) else ran.report.worst for ran in runs), default=0.0)


def largest(runs: Sequence[Ran]) -> float:
    """The worst error over its bound for the verdict. If the bound is the dtype's spacing, an error of 1 does not count."""
    found = worst(runs)
    return found if found > 1 else worst([ran for ran in runs if ran.plan.sku.op not in _ROUNDED])


def block(runs: Sequence[Ran], skus: Skus) -> Iterator[str]:
    """A line for each SKU that ran in these consecutive steps."""
    first, last = runs[0].step, runs[-1].step
    steps = f"{first}" if first == last else f"{first}-{last}"
    for sku_id in dict.fromkeys(ran.plan.sku.id for ran in runs):
        mine = [ran for ran in runs if ran.plan.sku.id == sku_id]
        sku = mine[0].plan.sku
        ratio, ms = f"{worst(mine):.3f}", f"{1e3 * median(ran.seconds for ran in mine):.3f}"
        yield _LINE.format(
            steps, _SHORT.get(sku.op, sku.op), _work(mine), skus.short(sku), sku.backend, guarantee(sku), ratio, ms
        )
        steps = ""


_ROW = "{:<10} {:>6} {:>9} {:<26} {:>12} {:>11}"


def table(runs: Sequence[Ran]) -> Iterator[str]:
    """A line for each operator and kernel: calls, rows, the worst error over its bound, and the median time of a call."""
    yield _ROW.format("operator", "calls", "rows", "kernel", "error/bound", "ms per call")
    for op, backend, impl in dict.fromkeys((ran.plan.sku.op, ran.plan.sku.backend, ran.plan.sku.impl) for ran in runs):
        mine = [ran for ran in runs if (ran.plan.sku.op, ran.plan.sku.backend, ran.plan.sku.impl) == (op, backend, impl)]
        ms, rows = 1e3 * median(ran.seconds for ran in mine), sum(ran.rows for ran in mine)
        yield _ROW.format(_SHORT.get(op, op), len(mine), rows, f"{backend}/{impl}", f"{worst(mine):.3f}", f"{ms:.3f}")


def served(totals: dict[str, Any]) -> str:
    """The number of tokens, and the tokens per second of operator time."""
    tokens, seconds = totals["prompt_tokens"] + totals["decode_tokens"], totals["operator_seconds"]
    parts = f"{totals['prompt_tokens']} of prompts and {totals['decode_tokens']} of answers"
    rate = f"{tokens / seconds:.0f} tokens/s" if seconds else "no rate"
    done = f"{totals['requests_completed']} of {totals['requests']} requests served"
    how = "through the operators of one layer, with a synchronisation after each call, without the checks"
    return f"{done}, {tokens} tokens ({parts}): {rate} {how}"


def _work(runs: Sequence[Ran]) -> str:
    rows, most = sum(ran.rows for ran in runs), max(ran.requests for ran in runs)
    return f"{len(runs)} x, {rows} rows, <= {most} requests, kv <= {max(ran.longest for ran in runs)}"


def counters(skus: Skus) -> Iterator[str]:
    """The telemetry snapshot of the SKUs seen."""
    snapshot = telemetry.snapshot()
    for number, sku_id in enumerate(skus.seen, 1):
        counted = snapshot.get(sku_id, {})
        yield f"  [{number}] " + ", ".join(f"{name} {_text(value)}" for name, value in counted.items())


def lines(values: dict[str, Any]) -> Iterator[str]:
    """Names and values, one per line."""
    for name, value in values.items():
        yield f"  {name.replace('_', ' '):<24} {_text(value)}"


def _text(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def on_a_gpu(runs: Sequence[Ran]) -> Iterator[str]:
    """A line for each op: the kernel that a GPU which is not present would get for the op's last descriptor."""
    latest = {ran.plan.descriptor.op: ran.plan.descriptor for ran in runs}
    for descriptor in latest.values():
        found = explain(descriptor, target=Target.parse(_TYPICAL_GPU))
        chosen = found.chosen
        if chosen is not None and chosen.sku is not None:
            refused = next((o for o in found.options if o.reasons), None)
            passed = f"; not {refused.name}: {refused.reasons[0]}" if refused is not None else ""
            facts = f"{chosen.name}, {guarantee(chosen.sku)}, workspace {chosen.workspace_size} bytes{passed}"
            yield f"  {descriptor.op:<16} {facts}"


def verdict(totals: dict[str, Any], seconds: float) -> str:
    """The last line: whether every result was within its bound, how many elements were checked, and the time."""
    largest = totals["worst_error_over_bound"]
    word = "PASS" if largest <= 1 else "FAIL"
    count = totals["checked_elements"]
    checked = f"{count / 1e6:.1f} million" if count >= 1e6 else str(count)
    return f"{word}: {totals['steps']} steps, {checked} elements checked, worst {largest:.3f} of the bound; {seconds:.0f} s"


def as_dict(settings: Settings, totals: dict[str, Any], runs: Sequence[Ran]) -> dict[str, Any]:
    """The full report as JSON, for programs."""
    skus = {ran.plan.sku.id: ran.plan.sku for ran in runs}
    snapshot = telemetry.snapshot()
    return {
        "settings": settings.model_dump(mode="json"),
        "totals": {name: _jsonable(value) for name, value in totals.items()},
        "skus": {name: sku.model_dump(mode="json") | {"telemetry": snapshot.get(name)} for name, sku in skus.items()},
        "runs": [_ran(ran) for ran in runs],
    }


def _ran(ran: Ran) -> dict[str, Any]:
    report = {"worst": _jsonable(ran.report.worst), "where": ran.report.where, "elements": ran.report.elements}
    work = {"requests": ran.requests, "rows": ran.rows, "longest": ran.longest}
    return {"step": ran.step, "sku": ran.plan.sku.id, **work, "seconds": ran.seconds, **report}


def _jsonable(value: Any) -> Any:
    """Converts infinity, which JSON does not have."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)
