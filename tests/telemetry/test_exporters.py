"""Prometheus and OpenTelemetry: the names that dashboards use, and their values."""

import pytest

from opfacade import telemetry
from opfacade.errors import ArgumentTypeError
from opfacade.telemetry import exporters
from tests.support.problems import decode, on_reference

pytestmark = pytest.mark.usefixtures("fresh_telemetry")
NAMES = {"selects", "runs", "builds", "loads", "cache_hits", "fallbacks", "spills", "build_seconds", "refusals", "events"}


@pytest.fixture
def sku():
    descriptor, args = decode([3])
    plan = on_reference(descriptor)
    plan.run(args), plan.run(args)
    telemetry.count_refusal("OPF-X001"), telemetry.count_build(plan.sku.id, 2.5), telemetry.count("tuned_row_ignored")
    telemetry.stats(plan.sku.id).time(30.0), telemetry.stats(plan.sku.id).time(3e8)
    return plan.sku.id


def test_prometheus_shows_every_counter(sku):
    prometheus = pytest.importorskip("prometheus_client")
    registry = prometheus.CollectorRegistry()
    registry.register(exporters.PrometheusCollector())
    labels = {"sku": sku, "op": "paged_decode"}
    value = lambda name, labels=labels: registry.get_sample_value(f"opfacade_{name}", labels)  # noqa: E731
    assert (value("runs_total"), value("selects_total"), value("build_seconds_total")) == (2, 1, 2.5)
    assert value("refusals_total", {"code": "OPF-X001"}) == 1
    assert value("events_total", {"name": "tuned_row_ignored"}) == 1
    bucket = lambda end: value("run_seconds_bucket", labels | {"le": end})  # noqa: E731
    assert (bucket("2e-05"), bucket("5e-05"), bucket("10"), bucket("+Inf")) == (0, 1, 1, 2)
    assert value("run_seconds_count") == 2
    assert value("run_seconds_sum") == pytest.approx(300.00003)
    assert {f.name for f in registry.collect()} == {f"opfacade_{name}" for name in NAMES} | {"opfacade_run_seconds"}


def test_prometheus_writes_its_text_form_with_nothing_counted():
    prometheus = pytest.importorskip("prometheus_client")
    registry = prometheus.CollectorRegistry()
    registry.register(exporters.PrometheusCollector())
    assert "# TYPE opfacade_runs_total counter" in prometheus.generate_latest(registry).decode()


def test_opentelemetry_observes_every_counter(sku):
    metrics = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    provider = metrics.MeterProvider(metric_readers=[reader])
    with pytest.raises(
        ArgumentTypeError, match=r"meter expected an OpenTelemetry Meter, got MeterProvider\. Pass provider\.get_meter"
    ):
        exporters.instrument(provider)
    exporters.instrument(provider.get_meter("test"))
    found = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for metric in resource.scope_metrics[0].metrics:
            assert metric.data.is_monotonic
            found[metric.name] = {tuple(sorted(p.attributes.items())): p.value for p in metric.data.data_points}
    labels = (("opfacade.op", "paged_decode"), ("opfacade.sku", sku))
    assert found["opfacade.runs"] == {labels: 2}
    assert found["opfacade.build.duration"] == {labels: 2.5}
    assert found["opfacade.refusals"][("opfacade.code", "OPF-X001"),] == 1
    assert found["opfacade.run.samples"] == {labels: 2}
    assert found["opfacade.run.duration"][labels] == pytest.approx(300.00003)
    assert len(found) == len(exporters.METRICS) + len(exporters.SAMPLED)


def test_names_are_those_that_dashboards_know():
    assert {metric.prometheus for metric in exporters.METRICS} == NAMES
    assert {metric.otel for metric in exporters.METRICS} == {
        "opfacade.build.duration", *(f"opfacade.{name}" for name in NAMES - {"build_seconds"})
    }  # fmt: skip
