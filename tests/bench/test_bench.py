"""`opfacade bench`: what is timed, refused and declined, and that the picture and the table show the results."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from opfacade import Target
from opfacade.bench import Options, measure, peers, picture, table, timers
from opfacade.bench.measure import described
from opfacade.cli.main import main
from opfacade.errors import UnsupportedError
from opfacade.plans._attention.variant_examples import alibi
from opfacade.select.registry import examples
from opfacade.tools.workload import Lengths, Work
from opfacade.tune.measure import MeasureEffort
from tests.support.fake_candidates import candidate
from tests.support.problems import append, decode, prefill, ragged

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = MeasureEffort(least=3, most=4, hopeless=1e9, early=False)


@pytest.fixture(autouse=True)
def _ceilings(monkeypatch):
    """A machine without stored measurements, so that tests need none."""
    monkeypatch.setattr("opfacade.bench.ceilings.of", lambda device: {"TBs": 0.02, "TFLOPs": 0.1})


def measured(*works, timer=None, **options):
    return measure([w if isinstance(w, Work) else Work(w) for w in works], Options(effort=QUICK, timer=timer, **options))


def rows_of(record):
    return {row["impl"]: row for row in record["rows"]}


OPS = [decode([5, 5])[0], prefill([4, 4], [8, 8])[0], ragged([3, 3], [3, 3])[0], append([1, 2], [6, 3])[0]]


@pytest.mark.parametrize("descriptor", OPS, ids=lambda d: d.op)
def test_ours_is_checked_timed_and_rated(descriptor):
    record = measured(descriptor)
    (row,) = record["rows"]
    assert record["ok"]
    assert (row["impl"], row["op"], row["samples"]) == ("opfacade reference/torch", descriptor.op, 4)
    assert row["us"] > 0
    assert 0 <= row["error_over_bound"] <= 1
    assert row["TBs"] == pytest.approx(row["bytes"] / row["us"] * 1e-6)
    assert row["TFLOPs"] == pytest.approx(row["flops"] / row["us"] * 1e-6)
    assert json.loads(json.dumps(record)) == record
    assert record["machine"]["device"] == "cpu"


@pytest.mark.parametrize(
    "problem",
    [decode([8, 8, 8]), decode([8, 8], page_table="block"), prefill([8, 8], [8, 8]), prefill([3, 3], [8, 8], causal=False),
     ragged([5, 5], [5, 5])],
    ids=["decode", "block", "causal", "full", "ragged"],
)  # fmt: skip
def test_torch_on_the_same_tensors_is_right_and_timed(problem):
    descriptor, _ = problem
    lengths = Lengths(q=(descriptor.total_num_rows // descriptor.batch_size,) * descriptor.batch_size) if hasattr(
        descriptor, "total_num_rows"
    ) else Lengths()  # fmt: skip
    tokens = 8 if descriptor.op != "ragged_prefill" else 5
    lengths = lengths.model_copy(update={"kv": (tokens,) * descriptor.batch_size})
    row = rows_of(measured(Work(descriptor, lengths=lengths), peers=None))["torch-sdpa (dense)"]
    assert "us" in row, row
    assert row["error_over_bound"] <= 1


def test_a_wrong_peer_is_named_and_never_timed(monkeypatch):
    ran = []

    def make(descriptor, args, lengths):
        def run():
            ran.append(1)
            args.o.zero_()

        return run

    monkeypatch.setattr(peers, "PEERS", (peers.Peer("liar", "torch", make),))
    record = measured(decode([5, 9])[0], peers=None)
    row = rows_of(record)["liar"]
    assert "of the bound" in row["wrong"]
    assert "us" not in row
    assert ran == [1]
    assert not record["ok"]
    assert rows_of(record)["opfacade reference/torch"]["us"] > 0


def test_a_peer_that_writes_nothing_passes_on_nobodys_output(monkeypatch):
    monkeypatch.setattr(peers, "PEERS", (peers.Peer("idle", "torch", lambda descriptor, args, lengths: lambda: None),))
    assert "wrong" in rows_of(measured(decode([5, 9])[0], peers=None))["idle"]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda descriptor, args, lengths: 1 / 0 if False else {}["no such shape"], "KeyError: 'no such shape'"),
        (lambda descriptor, args, lengths: (_ for _ in ()).throw(RuntimeError("too large\nmore")), "RuntimeError: too large"),
    ],
)
def test_what_a_peer_raises_is_its_answer(monkeypatch, make, why):
    monkeypatch.setattr(peers, "PEERS", (peers.Peer("fussy", "torch", make),))
    record = measured(decode([5, 9])[0], peers=None)
    assert rows_of(record)["fussy"]["declined"] == why
    assert record["ok"]


def test_a_peer_that_is_not_installed_says_so(monkeypatch):
    monkeypatch.setattr(peers, "PEERS", (peers.Peer("absent", "no_such_module_7", lambda descriptor, args, lengths: None),))
    assert rows_of(measured(decode([5])[0], peers=None))["absent"]["declined"] == "no_such_module_7 is not installed"


@pytest.mark.parametrize(
    ("problem", "lengths", "why"),
    [
        (decode([5, 9]), Lengths(kv=(5, 9)), "lengths differ"),
        (prefill([2, 2], [5, 5]), Lengths(q=(2, 2), kv=(5, 5)), "top left"),
        (decode([5], window_left=2), Lengths(kv=(5,)), "window"),
        (append([1], [3]), Lengths(q=(1,), kv=(3,)), "does not have paged_kv_append"),
        (prefill([4], [4], variant=alibi(2)), Lengths(q=(4,), kv=(4,)), "variant"),
        (prefill([4], [4], custom_mask=True, causal=False), Lengths(q=(4,), kv=(4,)), "mask"),
    ],
)
def test_what_torch_does_not_take_is_declined_with_the_reason(problem, lengths, why):
    row = rows_of(measured(Work(problem[0], lengths=lengths), peers=None))["torch-sdpa (dense)"]
    assert why in row["declined"]


def test_only_peers_that_were_asked_for_run():
    assert list(rows_of(measured(decode([5])[0]))) == ["opfacade reference/torch"]
    assert "torch-sdpa (dense)" in rows_of(measured(decode([5])[0], peers=("torch-sdpa (dense)",)))


def test_our_own_wrong_output_ends_with_status_one(monkeypatch, tmp_path):
    from opfacade import plan
    from opfacade.select import first_fit, selection

    monkeypatch.setattr(plan, "_selected", {})
    known = selection.configs_for
    monkeypatch.setattr(
        selection, "configs_for", lambda kind: (candidate("plain", "wrong"),) if "Decode" in str(kind) else known(kind)
    )
    for module in (selection, first_fit):
        monkeypatch.setattr(module, "candidates_for", selection.configs_for)
    (tmp_path / "w.json").write_text(decode([5, 9])[0].model_dump_json())
    result = CliRunner().invoke(main, ["bench", str(tmp_path / "w.json"), "--rounds=2"])
    assert result.exit_code == 1
    assert "WRONG" in result.output


def test_a_backend_that_declines_says_why():
    record = measured(decode([5])[0], backends=("cuda", "reference"))
    assert "no candidate for target cpu" in record["rows"][0]["declined"]
    assert record["rows"][1]["us"] > 0


def test_contenders_take_turns():
    times = iter(range(1, 1000))
    record = measured(decode([8, 8])[0], timer=lambda call: call() or float(next(times)), peers=("torch-sdpa (dense)",))
    ours, theirs = (row["us"] for row in record["rows"])
    assert abs(ours - theirs) <= 2  # one after the other they would be at least as far apart as they have samples
    assert record["timer"] == "given"


@pytest.mark.parametrize("example", examples(), ids=lambda e: e.op)
def test_every_example_is_described_in_a_few_words(example):
    words = described(Work(example))
    assert words == words.strip()
    assert 10 < len(words) < 90
    assert "None" not in words


def test_a_description_names_lengths():
    work = Work(prefill([2, 7], [5, 9])[0], lengths=Lengths(q=(2, 7), kv=(5, 9)))
    assert described(work).startswith("prefill 2x q2-7 kv5-9 h4/2 d8 page4 f16 causal")


# -- output ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def record():
    rows = []
    for problem, (flops, size) in enumerate([(1e9, 1e6), (2e6, 1e6), (0.0, 1e5)]):
        for impl, us in (("opfacade reference/torch", 50.0), ("other", 80.0 - 40 * problem)):
            facts = {"problem": problem, "op": "x", "name": f"problem {problem}", "bytes": size, "flops": flops}
            if not us:
                rows.append({**facts, "impl": impl, "declined": "too small"})
                continue
            rates = {"TBs": size / us * 1e-6, "TFLOPs": flops / us * 1e-6, "noise": 0.02, "samples": 9, "error_over_bound": 0.3}
            rows.append({**facts, "impl": impl, "us": us, **rates})
    rows.append({"problem": 3, "op": "x", "name": "bad", "bytes": 1.0, "flops": 1.0, "impl": "liar", "wrong": "7 of the bound"})
    machine = {"device": "a machine", "date": "2026-11-21T00:00:00Z"}
    return {"machine": machine, "timer": "a clock", "ceilings": {"TBs": 4.3, "TFLOPs": 780.0}, "rows": rows, "ok": False}


def test_the_table_shows_every_row_and_marks_the_fastest(record):
    from rich.console import Console

    console = Console(width=160, record=True, file=open("/dev/null", "w"), force_terminal=True)  # noqa: SIM115
    console.print(table(record))
    text = console.export_text(clear=False, styles=True)
    assert "a machine, a clock; at most 4.3 TB/s, 780 TFLOP/s" in text
    for part in ("problem 0", "problem 1", "50.00", "WRONG: 7 of the bound", "too small"):
        assert part in text
    bold = [line for line in text.splitlines() if re.search(r"\x1b\[1m.*us|\x1b\[1m *(opfacade|other|problem)", line)]
    assert len(bold) >= 3


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_picture_is_written(record, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    picture(record, tmp_path / f"p.{suffix}")
    content = (tmp_path / f"p.{suffix}").read_bytes()
    assert content[:4] in (b"\x89PNG", b"<?xm")
    if suffix == "svg":
        assert content.count(b"<path") > 20
        assert b"time over the fastest" in content


def test_the_legend_of_a_picture_lies_beside_the_data(record, tmp_path, monkeypatch):
    figures = pytest.importorskip("matplotlib.figure")
    seen = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: seen.append(figure))
    picture(record, tmp_path / "p.png")
    [figure] = seen
    figure.canvas.draw()
    [legend] = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    assert not any(legend.get_window_extent().overlaps(axes.get_window_extent()) for axes in figure.axes)


def test_a_picture_without_matplotlib_says_what_to_install(record, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(UnsupportedError, match="bench"):
        picture(record, tmp_path / "p.svg")


def test_the_command_writes_table_record_and_picture(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "w.jsonl").write_text("".join(d.model_dump_json() + "\n" for d in OPS))
    words = [
        "bench",
        tmp_path / "w.jsonl",
        "--rounds=2",
        "--peers",
        "--top=2",
        "--out",
        tmp_path / "r.json",
        "--picture",
        tmp_path / "p.png",
    ]
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code == 0, result.output
    assert "opfacade reference/torch" in result.output
    record = json.loads((tmp_path / "r.json").read_text())
    assert {row["problem"] for row in record["rows"]} == {0, 1}
    assert (tmp_path / "p.png").stat().st_size > 10_000


def test_a_record_from_elsewhere_is_shown_and_not_measured(record, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("opfacade.bench.measure", lambda *words: pytest.fail("measured"))
    (tmp_path / "r.json").write_text(json.dumps(record))
    result = CliRunner().invoke(main, ["bench", str(tmp_path / "r.json"), f"--picture={tmp_path / 'p.png'}"])
    assert result.exit_code == 1  # the record holds a wrong output
    assert "a machine, a clock" in result.output
    assert (tmp_path / "p.png").stat().st_size > 10_000


# -- clocks ------------------------------------------------------------------------------------------------------------


def activity(kind, correlation_id, start, end):
    return SimpleNamespace(kind=kind, correlation_id=correlation_id, start=start, end=end)


def test_a_span_is_that_of_the_work_launched_in_between():
    records = [
        activity("runtime", 1, 50, 60), activity("kernel", 1, 100, 900),  # of the previous call
        activity("runtime", 2, 1000, 1010), activity("kernel", 2, 1500, 2500),
        activity("driver", 3, 1020, 1030), activity("memcpy", 3, 2600, 3500),
        activity("runtime", 4, 5000, 5010), activity("kernel", 4, 6000, 9000),  # of the next call
    ]  # fmt: skip
    assert timers.span(records, 990, 1040, ("kernel", "memcpy"), ("runtime", "driver")) == 2.0
    assert timers.span([], 0, 10, ("kernel",), ("runtime",)) == 0.0


class FakeCupti:
    """The part of CUPTI that the timer uses: one kernel of 7 us per call."""

    ActivityKind = SimpleNamespace(
        CONCURRENT_KERNEL="kernel", MEMCPY="memcpy", MEMSET="memset", RUNTIME="runtime", DRIVER="driver"
    )

    def __init__(self):
        self.now, self.enabled, self.pending, self.launched = 0, [], [], 0

    def activity_register_callbacks(self, requested, completed):
        assert requested() == (8 << 20, 0)
        self.completed = completed

    def activity_enable(self, kind):
        self.enabled.append(kind)

    def get_timestamp(self):
        self.now += 10
        return self.now

    def activity_flush_all(self, flag):
        self.completed(self.pending)
        self.pending = []

    def launch(self):
        self.now, self.launched = self.now + 10, self.launched + 1
        self.pending += [
            activity("runtime", self.launched, self.now, self.now + 1),
            activity("kernel", self.launched, self.now + 500, self.now + 7500),
        ]


def test_cupti_times_the_kernels_of_a_call_and_not_the_flush(monkeypatch):
    fake = FakeCupti()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr("opfacade.testing.timing._flush_buffer", lambda device: SimpleNamespace(zero_=fake.launch))
    timer = timers.Cupti(fake)
    assert fake.enabled == ["kernel", "memcpy", "memset", "runtime", "driver"]
    assert [timer(fake.launch) for _ in range(3)] == [7.0] * 3


def test_the_clock_of_the_cpu_is_its_own():
    assert timers.best("cpu")[0] == "host clock"
    assert Target.current().is_cpu or timers.best("cuda")[0] in ("CUPTI", "CUDA events")
