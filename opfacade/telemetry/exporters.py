"""Counters for monitoring: a Prometheus collector (`opfacade[prometheus]`) and OpenTelemetry instruments (`opfacade[otel]`).

Both read the counters only when metrics are collected, so they add no cost to a run. The names are stable:
`opfacade_runs_total` and `opfacade.runs`, and so on for each entry of METRICS, with the labels sku and op, or code, or name;
sampled run times are the histogram `opfacade_run_seconds`, and the sums `opfacade.run.samples` and `opfacade.run.duration`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from opfacade import telemetry
from opfacade.errors import Issue, from_issues
from opfacade.telemetry import histogram

Labels = dict[str, str]
Value = tuple[Labels, float]


@dataclass(frozen=True, slots=True)
class Metric:
    """One counter that only grows: its names, its unit ("1" or "s"), its description, and a function that reads its values."""

    prometheus: str
    otel: str
    unit: str
    doc: str
    values: Callable[[], Iterable[Value]]


def _labels(sku: str) -> Labels:
    return {"sku": sku, "op": sku.split("/")[1] if "/" in sku else ""}


def _counted(name: str) -> Callable[[], list[Value]]:
    return lambda: [(_labels(sku), float(found[name])) for sku, found in telemetry.snapshot().items()]


def _sampled(name: str, scale: float) -> Callable[[], list[Value]]:
    return lambda: [(_labels(sku), found["latency"][name] * scale) for sku, found in _timed()]


def _timed() -> list[tuple[str, dict[str, Any]]]:
    return [(sku, found) for sku, found in telemetry.snapshot().items() if "latency" in found]


def _named(label: str, read: Callable[[], dict[str, int]]) -> Callable[[], list[Value]]:
    return lambda: [({label: name}, float(n)) for name, n in read().items()]


_DOCS = {
    "selects": "plans selected",
    "runs": "runs of plans",
    "builds": "kernels compiled",
    "loads": "plans loaded",
    "cache_hits": "loads that needed no build",
    "fallbacks": "selections of the reference because no kernel fits",
    "spills": "loads of a kernel that spills registers, uses local memory or serialises wgmma",
}
METRICS = (
    *(Metric(name, f"opfacade.{name}", "1", _DOCS[name], _counted(name)) for name in telemetry.COUNTED),
    Metric("build_seconds", "opfacade.build.duration", "s", "time spent compiling", _counted("build_seconds")),
    Metric("refusals", "opfacade.refusals", "1", "reasons against candidates, at select", _named("code", telemetry.refusals)),
    Metric("events", "opfacade.events", "1", "what concerns no single kernel, by name", _named("name", telemetry.counts)),
)
SAMPLED = (
    Metric("run_samples", "opfacade.run.samples", "1", "runs whose time was measured", _sampled("samples", 1.0)),
    Metric("run_sampled_seconds", "opfacade.run.duration", "s", "time of the measured runs", _sampled("sum_us", 1e-6)),
)


class PrometheusCollector:
    """`prometheus_client.REGISTRY.register(PrometheusCollector())`."""

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        for metric in METRICS:
            values = list(metric.values())
            names = list(values[0][0]) if values else []
            family = CounterMetricFamily(f"opfacade_{metric.prometheus}", metric.doc, labels=names)
            for labels, value in values:
                family.add_metric(list(labels.values()), value)
            yield family
        histogram = HistogramMetricFamily("opfacade_run_seconds", "time of the measured runs", labels=["sku", "op"])
        for sku, found in _timed():
            counts = found["latency"]["counts"]
            histogram.add_metric(list(_labels(sku).values()), _buckets(counts), found["latency"]["sum_us"] * 1e-6)
        yield histogram


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    """Pairs (upper limit in seconds, number of samples up to it), as Prometheus requires."""
    ends = [f"{end * 1e-6:.12g}" for end in histogram.LATENCY_ENDS] + ["+Inf"]
    return [(end, float(sum(counts[: i + 1]))) for i, end in enumerate(ends)]


def instrument(meter: object = None) -> list[Any]:
    """Creates and returns the OpenTelemetry instruments on `meter`, an `opentelemetry.metrics.Meter`.

    None: the meter "opfacade" of the global provider. ArgumentTypeError (OPF-E012) for a provider or another object.
    """
    from opentelemetry import metrics

    meter = metrics.get_meter("opfacade") if meter is None else meter
    if not isinstance(meter, metrics.Meter):
        hint = 'Pass provider.get_meter("opfacade").' if isinstance(meter, metrics.MeterProvider) else ""
        issue = Issue("OPF-E012", "meter", "an OpenTelemetry Meter", type(meter).__name__, hint, kind="ArgumentTypeError")
        raise from_issues("telemetry", "instrument", [issue])
    return [
        meter.create_observable_counter(metric.otel, callbacks=[_observing(metric)], unit=metric.unit, description=metric.doc)
        for metric in (*METRICS, *SAMPLED)
    ]


def _observing(metric: Metric) -> Callable[[Any], Iterator[Any]]:
    from opentelemetry.metrics import Observation

    def observe(options: object) -> Iterator[Any]:
        for labels, value in metric.values():
            yield Observation(value, {f"opfacade.{name}": text for name, text in labels.items()})

    return observe
