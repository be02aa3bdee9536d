"""Counters in a shared file: nothing is lost with any writer, and no failure reaches a run."""

import errno
import json
import multiprocessing
import os
import re
import threading
import time
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from opfacade import telemetry
from opfacade.base import notices
from opfacade.cli.main import main
from opfacade.errors import DroppedWarning
from opfacade.telemetry import file as telemetry_file
from opfacade.telemetry.file import Writer, added, read, without
from tests.support.problems import decode, on_reference

pytestmark = pytest.mark.usefixtures("fresh_telemetry")
EMPTY = {"skus": {}, "refusals": {}, "counts": {}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "telemetry.jsonl"


@pytest.fixture
def writer(path):
    made = Writer(str(path), interval=3600)
    yield made
    made.stop()


def test_a_line_holds_all_counts_and_the_last_one_counts(path, writer):
    telemetry.stats("x").runs.add()
    assert writer.write()
    telemetry.stats("x").runs.add(), telemetry.count_refusal("OPF-S001"), telemetry.count("happened")
    assert writer.write()
    assert writer.write()
    assert len(path.read_text().splitlines()) == 2
    total, broken = read(path)
    assert (total["skus"]["x"]["runs"], total["refusals"], total["counts"]) == (2, {"OPF-S001": 1}, {"happened": 1})
    assert broken == 0


def _count_and_write(path, go):
    go.wait(120)
    writer = Writer(path, interval=0.001)
    for number in range(1000):
        telemetry.stats(f"sku-{number % 3}").runs.add()
    telemetry.stats("sku-0").time(7.0)
    writer.stop()


def test_thirty_two_writers_lose_nothing(path):
    context = multiprocessing.get_context("fork")
    go = context.Event()
    processes = [context.Process(target=_count_and_write, args=(str(path), go)) for _ in range(32)]
    [p.start() for p in processes]
    go.set()
    [p.join(240) for p in processes]
    assert {p.exitcode for p in processes} == {0}
    total, broken = read(path)
    assert sum(found["runs"] for found in total["skus"].values()) == 32 * 1000
    assert total["skus"]["sku-0"]["latency"]["samples"] == 32
    assert broken == 0


def test_thirty_two_threads_lose_nothing(path, writer):
    def work():
        for _ in range(500):
            telemetry.stats("x").runs.add()
        writer.write()

    threads = [threading.Thread(target=work) for _ in range(32)]
    [t.start() for t in threads], [t.join() for t in threads]
    writer.write()
    assert read(path)[0]["skus"]["x"]["runs"] == 32 * 500


def test_a_line_with_earlier_counts_never_follows_one_with_later_counts(path, writer, monkeypatch):
    append, arrived, late = writer._file.append, threading.Event(), threading.Event()

    def slow(line):
        if not arrived.is_set():
            arrived.set()
            late.wait(1)
        append(line)

    monkeypatch.setattr(writer, "_file", SimpleNamespace(append=slow))
    threads = [threading.Thread(target=writer.write) for _ in range(2)]
    for thread in threads:
        telemetry.stats("x").runs.add()
        thread.start()
        arrived.wait(60)
    threads[1].join(1)
    late.set()
    [t.join() for t in threads]
    assert read(path)[0]["skus"]["x"]["runs"] == 2


@pytest.mark.filterwarnings("ignore::opfacade.errors.DroppedWarning")
def test_a_full_disk_costs_no_count_and_reaches_no_run(path, writer, monkeypatch):
    descriptor, args = decode([3])
    plan = on_reference(descriptor)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, line: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        plan.run(args)
        assert not writer.write()
    assert writer.failures == 1
    plan.run(args)
    assert writer.write()
    assert read(path)[0]["skus"][plan.sku.id]["runs"] == 2
    assert json.loads(path.read_text())["failures"] == 1


@pytest.mark.filterwarnings("ignore::opfacade.errors.DroppedWarning")
def test_a_line_that_did_not_fit_spoils_no_other(path, writer, monkeypatch):
    write, space = os.write, [40]
    telemetry.stats("x").runs.add()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, line: write(handle, line[: space.pop()]))
        assert not writer.write()
    assert writer.write()
    total, broken = read(path)
    assert (total["skus"]["x"]["runs"], broken) == (1, 1)


@pytest.mark.parametrize("place", ["/proc/nowhere/t.jsonl", "/"])
@pytest.mark.filterwarnings("ignore::opfacade.errors.DroppedWarning")
def test_a_place_that_cannot_be_written_is_no_error(place):
    writer = Writer(place, interval=3600)
    telemetry.stats("x").runs.add()
    assert not writer.write()
    writer.stop()
    assert writer.failures == 2


@pytest.mark.parametrize(
    "rubbish",
    [b"\x00\xff", b"{", b"[]", b'"x"', b'{"pid": 1}', b'{"pid": [], "since": 1, "skus": 1, "refusals": 2, "counts": 3}',
     b'{"pid": 1, "since": 1, "skus": {"x": "many"}, "refusals": {}, "counts": {}}',
     b'{"pid": 1, "since": 1, "skus": {"x": {"runs": -5}}, "refusals": {}, "counts": {}}',
     b'{"pid": 1, "since": 1, "skus": {"y": 5}, "refusals": {}, "counts": {}}',
     b'{"pid": 1, "since": 1, "skus": {"y": {"runs": {}}}, "refusals": {}, "counts": {}}',
     b'{"pid": 1, "since": 1, "skus": {"y": {"latency": 7}}, "refusals": {}, "counts": {}}',
     b'{"pid": 1, "since": 1, "skus": {"y": {"latency": {"counts": 7}}}, "refusals": {}, "counts": {}}',
     b'{"pid": 1, "since": 1, "skus": {}, "refusals": {"a": [1]}, "counts": {}}',
     b'{"pid": 1, "since": 1, "skus": {}, "refusals": {}, "counts": {"a": 1e308}}',
     b'{"pid": 1, "pid": 2, "since": 1, "skus": {}, "refusals": {}, "counts": {}}',
     b'{"pid": 1, "since": 1, "skus": {}, "refusals": {}, "counts": {"a": ' + b"9" * 5000 + b"}}",
     b"[" * 100_000, b'{"pid":' * 50_000],
)  # fmt: skip
def test_what_is_broken_in_a_file_is_passed_over_and_counted(path, writer, rubbish):
    path.write_bytes(rubbish + b"\n")
    telemetry.stats("x").runs.add()
    assert writer.write()
    total, broken = read(path)
    assert (total["skus"]["x"]["runs"], broken) == (1, 1)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")], ids=["fifo", "dir", "device"]
)
def test_what_is_no_regular_file_is_not_read(tmp_path, make):
    make(tmp_path / "it")
    with pytest.raises(OSError, match=r"not a regular file|directory"):
        read(tmp_path / "it")


def test_a_line_without_end_is_read_in_parts(path, monkeypatch):
    monkeypatch.setattr(telemetry_file, "_LONGEST_LINE", 1 << 10)
    path.write_bytes(b"x" * 5000 + b"\n")
    assert read(path) == (EMPTY, 5)


def test_times_without_a_new_sample_are_shown(path):
    path.write_text(
        '{"pid": 1, "since": 1, "skus": {"x": {"runs": 1, "latency": {"counts": [0]}}}, "refusals": {}, "counts": {}}'
    )
    assert CliRunner().invoke(main, ["telemetry", str(path)]).output == "x\n    runs 1\n1 SKUs, 0 broken lines\n"


def test_a_child_reports_its_own_counts_only(path, monkeypatch):
    monkeypatch.setenv("OPFACADE_TELEMETRY_FILE", str(path))
    monkeypatch.setattr(telemetry_file, "_writer", None)
    telemetry_file.start()
    for _ in range(5):
        telemetry.stats("x").runs.add()
    child = multiprocessing.get_context("fork").Process(target=_one_more)
    child.start()
    child.join(120)
    telemetry_file._writer.stop()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((line["pid"] == os.getpid(), line["skus"]["x"]["runs"]) for line in lines) == [(False, 1), (True, 5)]


def _one_more():
    telemetry.stats("x").runs.add()
    telemetry_file._writer.stop()


@pytest.mark.timeout(120)
def test_a_fork_while_a_thread_counts_a_time_does_not_hang_the_child(path, monkeypatch):
    """The child reads its parent's counts before it runs any other code."""
    monkeypatch.setenv("OPFACADE_TELEMETRY_FILE", str(path))
    monkeypatch.setattr(telemetry_file, "_writer", None)
    telemetry_file.start()
    telemetry.stats("x").time(1.0)
    taken, over = threading.Event(), threading.Event()

    def hold():
        with telemetry.stats("x").latency._lock:
            taken.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(60)
    child = multiprocessing.get_context("fork").Process(target=_one_more)
    child.start()
    child.join(30)
    hung = child.is_alive()
    child.kill()
    over.set(), thread.join(), telemetry_file._writer.stop()
    assert not hung
    assert read(path)[0]["skus"]["x"]["runs"] == 1


def _forget_and_count():
    telemetry.reset()
    telemetry.stats("x").runs.add()
    telemetry_file._writer.stop()


def test_a_child_that_forgets_its_counts_reports_what_it_counts_afterwards(path, monkeypatch):
    monkeypatch.setenv("OPFACADE_TELEMETRY_FILE", str(path))
    monkeypatch.setattr(telemetry_file, "_writer", None)
    telemetry_file.start()
    for _ in range(5):
        telemetry.stats("x").runs.add()
    child = multiprocessing.get_context("fork").Process(target=_forget_and_count)
    child.start()
    child.join(120)
    telemetry_file._writer.stop()
    total, broken = read(path)
    assert (total["skus"]["x"]["runs"], broken) == (6, 0)


def test_the_first_plan_that_is_loaded_starts_the_file_once(path, monkeypatch):
    monkeypatch.setenv("OPFACADE_TELEMETRY_FILE", f"{path}.%p")
    monkeypatch.setattr(telemetry_file, "_writer", None)
    for lengths in ([3], [3, 4]):
        descriptor, args = decode(lengths)
        on_reference(descriptor).run(args)
    first = telemetry_file._writer
    telemetry_file.start()
    assert telemetry_file._writer is first
    first.stop()
    total, _ = read(path.with_name(f"{path.name}.{os.getpid()}"))
    assert {found["runs"] for found in total["skus"].values()} == {2}
    assert {found["loads"] for found in total["skus"].values()} == {2}


def test_the_command_adds_up_and_tells_of_broken_lines(path, writer):
    telemetry.stats("x").runs.add(), telemetry.stats("x").time(50.0), telemetry.count_refusal("OPF-S001")
    writer.write()
    path.write_text(path.read_text() + "rubbish\n")
    text = CliRunner().invoke(main, ["telemetry", str(path)]).output
    assert text == "x\n    runs 1\n    mean_us 50.000 (1 sampled)\nOPF-S001 1\n1 SKUs, 1 broken lines\n"
    found = json.loads(CliRunner().invoke(main, ["telemetry", str(path), "--json"]).output)
    assert (found["skus"]["x"]["runs"], found["broken_lines"]) == (1, 1)


def test_no_thread_is_started_where_no_file_is_wanted(monkeypatch):
    monkeypatch.setattr(telemetry_file, "_writer", None)
    telemetry_file.start()
    assert telemetry_file._writer is None


def test_counts_are_subtracted_and_added_number_by_number():
    before = EMPTY | {"skus": {"x": {"runs": 2, "latency": {"counts": [1, 0]}}}}
    now = EMPTY | {"skus": {"x": {"runs": 5, "latency": {"counts": [1, 3]}}, "y": {"runs": 1}}}
    assert without(now, before) == EMPTY | {"skus": {"x": {"runs": 3, "latency": {"counts": [0, 3]}}, "y": {"runs": 1}}}
    assert without(now, {}) == now
    assert added(without(now, before), before) == now


def _write_until_killed(path, go):
    writer = Writer(path, interval=3600)
    while True:
        telemetry.stats("x").runs.add()
        writer.write()
        go.set()  # the file has a line, however late this process started


def test_a_writer_that_is_killed_costs_at_most_its_last_line(path):
    """A kill may occur within the system call, between two pages of the file: then the last line of the process is incomplete,
    and the first line of the next process follows on the same line."""
    context, pids = multiprocessing.get_context("fork"), []
    for _ in range(3):
        go = context.Event()
        process = context.Process(target=_write_until_killed, args=(str(path), go))
        process.start()
        assert go.wait(120)
        time.sleep(0.1)
        process.kill()
        process.join(120)
        pids.append(process.pid)
    total, broken = read(path)
    written = {pid: [] for pid in pids}
    for text in re.split(r"(?=\{\"pid\": )", path.read_text()):
        for pid in re.findall(r"^\{\"pid\": (\d+)", text):
            written[int(pid)].append(text)
    torn = [pid for pid, texts in written.items() if not _is_whole(texts[-1])]
    assert broken == len(torn)
    whole = {pid: texts[: len(texts) - (pid in torn)] for pid, texts in written.items()}
    counts = {pid: [json.loads(text)["skus"]["x"]["runs"] for text in texts] for pid, texts in whole.items()}
    assert all(runs == [*range(runs[0], runs[0] + len(runs))] for runs in counts.values())
    assert total["skus"]["x"]["runs"] == sum(runs[-1] for runs in counts.values())


@pytest.mark.parametrize(("kept", "counted"), [(1, (1, 1)), (8, (1, 1)), (30, (1, 1)), (-2, (1, 1)), (-1, (2, 0))])
def test_a_torn_line_costs_no_line_of_the_process_that_writes_next(path, kept, counted):
    """Only the last line of a process remains: a line that follows an incomplete one counts."""
    writer = Writer(str(path), interval=3600)
    telemetry.stats("x").runs.add()
    writer.stop()
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'{"pid": ', b'{"pid": 9')[:kept] + whole)
    total, broken = read(path)
    assert (total["skus"]["x"]["runs"], broken) == counted
    assert path.read_bytes().count(b"\n") == 1


def _is_whole(text):
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@pytest.mark.timeout(120)
def test_a_fifo_that_nobody_reads_stops_neither_a_run_nor_the_end_of_a_process(path, monkeypatch):
    monkeypatch.setattr(notices, "_told", {})
    os.mkfifo(path)
    writer = Writer(str(path), interval=3600)
    telemetry.stats("x").runs.add()
    with pytest.warns(DroppedWarning, match=r"OPFACADE_TELEMETRY_FILE.*OPF-E002") as warned:
        assert [writer.write(), writer.stop()] == [False, None]
    assert (writer.failures, len(warned)) == (2, 1)


def test_a_process_without_room_for_a_thread_writes_at_its_end(path, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(notices, "_told", {})
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.warns(DroppedWarning, match="can't start new thread"):
            writer = Writer(str(path))
    telemetry.stats("x").runs.add()
    writer.stop()
    assert read(path)[0]["skus"]["x"]["runs"] == 1
