"""Recording: every problem once with its counts, whichever thread ran it; and one file format for all readers
of descriptors.
"""

import errno
import json
import os
import tempfile
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from examples.demo.__main__ import main as demo
from opfacade import Plan, Preference, SkuManifest, Target, errors, jit, record, telemetry
from opfacade.cli.main import main
from opfacade.tools.recorder import Recorder, lengths_of
from opfacade.tools.workload import read
from tests.support.problems import REFERENCE, append, decode, on_reference, prefill, ragged

pytestmark = [
    pytest.mark.usefixtures("fresh_telemetry"),
    pytest.mark.filterwarnings("ignore::opfacade.errors.FallbackWarning"),
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.jsonl"


def test_each_problem_is_there_once_with_its_counts(path):
    (one, args), (two, other) = decode([3]), decode([3, 9])
    with record(path):
        for _ in range(3):
            on_reference(one).run(args)
        on_reference(two).run(other)
    works = read(path.read_text())
    assert [(w.descriptor, w.selects, w.runs) for w in works] == [(one, 3, 3), (two, 1, 1)]
    assert {w.preference for w in works} == {REFERENCE}
    first = json.loads(path.read_text().splitlines()[0])
    assert (first["sku"], first["target"]) == (on_reference(one).sku.id, "cpu")


def test_a_plan_selected_before_the_block_is_recorded_when_it_runs(path):
    descriptor, args = decode([3])
    plan = on_reference(descriptor)
    with record(path):
        plan.run(args)
    plan.run(args)
    (work,) = read(path.read_text())
    assert (work.descriptor, work.selects, work.runs) == (descriptor, 0, 1)


def test_preferences_are_kept_apart_and_equal_plans_together(path):
    descriptor, _ = decode([3])
    strict = Preference(backend="reference", max_workspace_bytes=0)
    with record(path):
        Plan._select(descriptor, REFERENCE, Target.cpu())
        for prefer in (REFERENCE, strict):
            Plan.select(descriptor, prefer, Target.cpu())
    assert {w.preference: w.selects for w in read(path.read_text())} == {REFERENCE: 1, strict: 1}


def test_runs_of_equal_plans_are_added(path):
    descriptor, args = decode([3])
    with record(path):
        for runs in (2, 3):
            plan = Plan._select(descriptor, REFERENCE, Target.cpu())
            for _ in range(runs):
                plan.run(args)
    assert [work.runs for work in read(path.read_text())] == [5]


def test_eight_threads_lose_no_run(path):
    descriptor, args = decode([], page_table="block")
    plan = on_reference(descriptor)
    with record(path):
        threads = [threading.Thread(target=lambda: [plan.run(args) for _ in range(300)]) for _ in range(8)]
        [t.start() for t in threads], [t.join() for t in threads]
    assert read(path.read_text())[0].runs == 2400


@pytest.mark.parametrize(
    ("problem", "q", "kv"),
    [
        (prefill([3, 0, 2], [7, 4, 2]), (3, 0, 2), (7, 4, 2)),
        (prefill([3, 2], [7, 4], page_table="block"), (3, 2), (7, 4)),
        (decode([5, 0, 9]), None, (5, 0, 9)),
        (ragged([2, 3], [4, 0]), (2, 3), (4, 0)),
        (append([1, 2], [6, 3]), (1, 2), (6, 3)),
    ],
    ids=["prefill", "block", "decode", "ragged", "append"],
)
def test_lengths_are_those_of_the_call(problem, q, kv):
    found = lengths_of(*problem)
    assert (found.q, found.kv) == (q, kv)


def test_lengths_are_read_only_where_asked_for_and_once(path, monkeypatch):
    (descriptor, args), reads = decode([5, 9]), []
    monkeypatch.setattr("opfacade.tools.recorder.lengths_of", lambda *words: reads.append(1) or lengths_of(*words))
    with record(path):
        on_reference(descriptor).run(args)
    assert reads == []
    with record(path, lengths=True):
        on_reference(descriptor).run(args), on_reference(descriptor).run(args)
    assert reads == [1]
    assert read(path.read_text())[0].lengths.kv == (5, 9)


def test_what_was_seen_is_written_when_the_block_raises(path):
    descriptor, args = decode([3])

    def fail():
        with record(path):
            on_reference(descriptor).run(args)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert read(path.read_text())[0].runs == 1
    assert not telemetry._watched


PLACES = {
    "no directory": lambda path: path / "absent" / "trace.jsonl",
    "directory": lambda path: path,
    "below a file": lambda path: (path / "file").touch() or path / "file" / "trace.jsonl",
    "fifo": lambda path: os.mkfifo(path / "fifo") or path / "fifo",
    "device": lambda path: "/dev/null",
    "link to a device": lambda path: (path / "link").symlink_to("/dev/full") or path / "link",
    "nul": lambda path: f"{path}/a\0b",
    "long": lambda path: path / ("x" * 300),
    "empty": lambda path: "",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_cannot_be_written_is_told_before_the_block(tmp_path, place):
    path = PLACES[place](tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(errors.RecordingError, match=r"record: path expected a file.*OPF-E003") as caught, record(path):
        pytest.fail("the block ran")
    assert (caught.value.recording, caught.value.kept) == ("", "")
    assert isinstance(caught.value, OSError)
    assert not telemetry._watched
    assert sorted(tmp_path.iterdir()) == before


def recorded(path, spoil):
    """The error that leaves a block after one run, with `spoil()` called in it."""
    (descriptor, args), done = decode([3]), []

    def fill():
        with record(path):
            on_reference(descriptor).run(args)
            spoil()
            done.append(1)

    with pytest.raises(errors.RecordingError, match="OPF-E003") as caught:
        fill()
    assert done == [1]
    (work,) = read(caught.value.recording)
    assert (work.descriptor, work.runs) == (descriptor, 1)
    return caught.value


def test_a_place_that_is_lost_meanwhile_loses_no_recording(path):
    error = recorded(path, path.mkdir)
    assert Path(error.kept).read_text() == error.recording
    assert error.kept in str(error)
    assert Path(error.kept).parent == path.parent


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_full_disk_reaches_the_end_of_the_block_and_loses_no_recording(path, tmp_path, monkeypatch, elsewhere):
    path.write_text("what was there before\n")
    made, make = [], tempfile.mkstemp

    def full(**where):
        handle, name = make(**where)
        made.append(name)
        if len(made) > 1 and elsewhere:
            return handle, name
        os.close(handle)
        return os.open("/dev/full", os.O_WRONLY), name

    monkeypatch.setattr(tempfile, "mkstemp", full)
    error = recorded(path, lambda: None)
    assert error.errno == errno.ENOSPC
    assert error.kept == (made[1] if elsewhere else "")
    assert not elsewhere or Path(made[1]).read_text() == error.recording
    assert path.read_text() == "what was there before\n"
    assert list(path.parent.iterdir()) == [path]


def test_lengths_that_are_none_stop_no_run(path):
    descriptor, args = decode([3, 5])
    recorder = Recorder(lengths=True)
    plan = on_reference(descriptor)
    args.kv_indptr[1] = -4
    recorder.ran(plan, args)
    (work,) = recorder.works().values()
    assert (work.runs, work.lengths) == (1, None)


def test_two_recordings_do_not_disturb_each_other(tmp_path):
    descriptor, args = decode([3])
    with record(tmp_path / "outer"):
        on_reference(descriptor).run(args)
        with record(tmp_path / "inner"):
            on_reference(descriptor).run(args)
        on_reference(descriptor).run(args)
    assert [read((tmp_path / name).read_text())[0].runs for name in ("outer", "inner")] == [3, 1]


def test_nothing_is_handed_over_while_nobody_records(monkeypatch):
    descriptor, args = decode([3])
    monkeypatch.setattr(telemetry, "ran", lambda *words: pytest.fail("a run was told of"))
    on_reference(descriptor).run(args)


# -- recordings of the demo, and one file format for all readers ------------------------------------------------------

SMALL = ["--heads=2", "--kv-heads=1", "--head-dim=16", "--page-size=4", "--chunk=16", "--every=4"]


def serve(trace, path, *more):
    return CliRunner().invoke(demo, ["--device=cpu", f"--trace={trace}", f"--record={path}", *SMALL, *more])


@pytest.fixture
def demo_trace(tmp_path, path):
    """A recording of the demo."""
    trace = tmp_path / "lengths.csv"
    trace.write_text("ContextTokens,GeneratedTokens\n20,5\n3,1\n1,9\n37,4\n16,16\n")
    result = serve(trace, path)
    assert result.exit_code == 0, result.output
    return path


def test_the_demo_records_what_it_solved_with_real_lengths(demo_trace):
    works = read(demo_trace.read_text())
    assert {w.descriptor.op for w in works} >= {
        "paged_kv_append",
        "paged_prefill",
        "paged_decode",
        "norm",
        "qkv_prepare",
        "sample",
    }
    snapshot = telemetry.snapshot()
    for op in {w.descriptor.op for w in works}:
        assert sum(w.runs for w in works if w.descriptor.op == op) == sum(
            counted["runs"] for sku, counted in snapshot.items() if f"/{op}/" in sku
        )
    requests = [work for work in works if hasattr(work.descriptor, "batch_size")]
    assert len(requests) >= 4
    for work in requests:
        assert len(work.lengths.kv) == work.descriptor.batch_size
        if work.lengths.q is not None:
            assert sum(work.lengths.q) == work.descriptor.total_num_rows


def test_the_same_file_feeds_warmup_manifest_and_verify(demo_trace, monkeypatch):
    built = []
    monkeypatch.setattr(jit, "build", lambda spec, **facts: built.append(spec))
    monkeypatch.setattr(jit, "is_built", lambda spec: False)
    run = lambda *words: CliRunner().invoke(main, list(map(str, words)))  # noqa: E731
    target = Target.parse("sm_90a")
    warm = run("warmup", demo_trace, "--target=sm_90a", "--jobs=1")
    assert warm.exit_code == 0, warm.output
    specs = {spec for w in read(demo_trace.read_text()) for spec in w.plan(target=target).jit_specs}
    assert set(built) - {jit.HOST} == specs != set()
    frozen = run("manifest", "freeze", demo_trace)
    skus = {w.plan(target=Target.cpu()).sku.id for w in read(demo_trace.read_text())}
    assert set(SkuManifest.model_validate_json(frozen.output).skus) == skus
    proven = run("verify", demo_trace, "--op=paged_kv_append", "--quick")
    assert proven.exit_code == 0, proven.output
    assert "1 of 1 SKUs held" in proven.output
