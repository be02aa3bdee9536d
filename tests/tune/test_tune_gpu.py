"""On a GPU: variants are correct and timed, peers and pictures are recorded, and telemetry does not touch graphs."""

import pytest
import torch

from opfacade import Plan, Preference, Target, record, telemetry
from opfacade.bench import Options, measure
from opfacade.bench.timers import best
from opfacade.plans.attention import BatchPagedDecodeDescriptor, BatchPagedPrefillDescriptor, PagedKvCacheDescriptor
from opfacade.select import measurements as autotune_table
from opfacade.select.measurement_store import MeasurementStore
from opfacade.testing import inputs
from opfacade.tools.workload import Work, lengths_of, read
from opfacade.tune.measure import MeasureEffort, device_timer
from opfacade.tune.refresh import refresh
from opfacade.tune.tune import Setup, eligible, proven, tune

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh_telemetry")]
CACHE = PagedKvCacheDescriptor(num_total_pages=512, page_size=16, num_kv_heads=2, head_dim=128, dtype="bf16", layout="HND")
DECODE = BatchPagedDecodeDescriptor(batch_size=4, num_qo_heads=8, paged_kv=CACHE)
PREFILL = BatchPagedPrefillDescriptor(batch_size=4, total_num_rows=64, num_qo_heads=8, causal=True, paged_kv=CACHE)
CUDA = Preference(backend="cuda")


def arguments(descriptor):
    found = lengths_of(Work(descriptor))
    return inputs.make_args(descriptor, 1, "cuda", inputs.DrawnLengths(q=found.q, kv=found.kv))


@pytest.fixture
def store(monkeypatch, tmp_path):
    """Measurements of this test only; kernels stay cached."""
    found = MeasurementStore(tmp_path / "tune.db")
    monkeypatch.setattr(autotune_table, "store_here", lambda: found)
    refresh()
    yield found
    monkeypatch.undo()
    refresh()


@pytest.mark.parametrize("descriptor", [DECODE, PREFILL], ids=lambda d: d.op)
def test_every_variant_keeps_its_bound(descriptor):
    args, seen = arguments(descriptor), []
    for option in eligible(descriptor, CUDA, Target.current()):
        _, worst = proven(Plan.select(descriptor, Preference(pin=option.sku.id)), args)
        assert worst <= 1, option.name
        seen.append(option.candidate.config)
    assert len(seen) >= 4


@pytest.mark.parametrize("descriptor", [DECODE, PREFILL], ids=lambda d: d.op)
def test_a_tuning_is_kept_and_applied(store, descriptor):
    (found,) = tune([descriptor], setup=Setup(effort=MeasureEffort(least=12, most=30), store=store))
    assert found.wrong == {}
    assert found.row.hardware.endswith(torch.cuda.get_device_name())
    assert all(0 < m.median_us < 1e5 for m in found.row.measured)
    assert Plan.select(descriptor, Preference(autotune="use")).sku.id == found.row.winner
    assert telemetry.counts()["tuned_hit"] >= 1


def test_the_timer_knows_a_long_call_from_a_short_one():
    short, long = (torch.ones(n, device="cuda") for n in (2**10, 2**28))
    for timer in (device_timer, best("cuda")[1]):
        times = [sorted(timer(lambda x=x: x.mul_(1.0)) for _ in range(5))[2] for x in (short, long)]
        assert 0 < times[0] < 100 < times[1]  # a GiB read and written takes about 500 us


def test_a_benchmark_has_ceilings_and_rates():
    made = measure(
        [Work(DECODE), Work(PREFILL)], Options(peers=None, variants=True, effort=MeasureEffort(least=5, most=10, hopeless=1e9))
    )
    ours = [row for row in made["rows"] if row["impl"].startswith("opfacade")]
    assert made["ok"], [row for row in made["rows"] if "wrong" in row]
    assert all(row["us"] > 0 and row["error_over_bound"] <= 1 for row in ours)
    assert 0.1 < made["ceilings"]["TBs"] < 20
    assert 10 < made["ceilings"]["TFLOPs"] < 3000


def test_sampled_times_are_those_of_the_device(monkeypatch):
    monkeypatch.setenv("OPFACADE_TELEMETRY_SAMPLE", "1")
    args, plan = arguments(DECODE), Plan.select(DECODE, CUDA)
    for _ in range(20):
        plan.run(args)
    torch.cuda.synchronize()
    plan.run(args)
    found = telemetry.snapshot()[plan.sku.id]["latency"]
    assert found["samples"] == 20
    assert 1 < found["sum_us"] / 20 < 10_000


@pytest.mark.parametrize("variable", ["OPFACADE_TELEMETRY_SAMPLE", "OPFACADE_NVTX"])
def test_a_graph_is_captured_and_recorded_all_the_same(monkeypatch, tmp_path, variable):
    monkeypatch.setenv(variable, "1")
    args, plan = arguments(DECODE), Plan.select(DECODE, CUDA)
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
    plan.run(args, workspace)
    want = args.o.clone()
    args.o.zero_()
    graph = torch.cuda.CUDAGraph()
    with record(tmp_path / "trace.jsonl", lengths=True), torch.cuda.graph(graph):
        plan.run(args, workspace)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(args.o, want)
    (work,) = read((tmp_path / "trace.jsonl").read_text())
    assert (work.runs, work.lengths) == (1, None)
