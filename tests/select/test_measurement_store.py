"""The database of measurements: stored, quarantined and ignored rows, and that no operation raises."""

import json
import multiprocessing
import os
import random
import sqlite3
from pathlib import Path

import pytest

from opfacade import telemetry
from opfacade.errors import DescriptorError
from opfacade.select.decision import Measured, TuningRow, decide
from opfacade.select.measurement_store import MeasurementStore, export, on_network, parse, sound

pytestmark = pytest.mark.usefixtures("fresh_telemetry")


def row(key="k", winner="b", **update):
    measured = tuple(
        Measured(sku=s, median_us=t, noise=0.0, samples=12, worst=0.5)
        for s, t in (("a", 100.0), ("b", 80.0 if winner == "b" else 99.0))
    )
    facts = {"key": key, "hardware": "h", "toolchain": "t", "require": "{}", "date": "2026-01-01", "incumbent": "a"}
    return TuningRow(
        **facts | {"winner": winner, "gain": 0.2 if winner == "b" else 0.0, "noise": 0.0, "measured": measured} | update
    )


@pytest.fixture
def store(tmp_path):
    return MeasurementStore(tmp_path / "place" / "tune.db")


def test_rows_come_back_and_the_newer_of_two_counts(store):
    assert store.rows() == ()
    assert store.put([row("one"), row("two")])
    assert store.put([row("one", winner="a")])
    assert {r.key: r.winner for r in store.rows()} == {"one": "a", "two": "b"}
    assert telemetry.counts() == {}


def test_rows_of_other_hardware_toolchains_and_requirements_stand_beside_each_other(store):
    rows = [row(), row(hardware="h2"), row(toolchain="t2"), row(require='{"deterministic":true}')]
    store.put(rows)
    assert sorted(store.rows(), key=str) == sorted(rows, key=str)


def test_the_database_is_in_wal_mode(store):
    store.put([row()])
    assert sqlite3.connect(store.path).execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(
    "content",
    [b"rubbish" * 100, b"SQLite format 3\0" + b"\xff" * 5000, random.Random(1).randbytes(4096)],
    ids=["words", "header", "noise"],
)
def test_a_file_that_is_no_database_is_put_aside_and_a_new_one_made(store, content):
    store.path.parent.mkdir()
    store.path.write_bytes(content)
    assert store.rows() == ()
    assert store.put([row()])
    assert store.rows() == (row(),)
    assert telemetry.counts()["tuned_store_corrupt"] == 1
    assert [p.name for p in store.path.parent.glob("*.corrupt")] == ["tune.db.corrupt"]


def test_a_corrupt_file_is_put_aside_by_a_write_too(store):
    store.path.parent.mkdir()
    store.path.write_bytes(b"rubbish" * 100)
    assert store.put([row()])
    assert store.rows() == (row(),)


@pytest.mark.parametrize("place", ["/proc/nowhere/tune.db", "/dev/null/tune.db"])
def test_a_place_that_cannot_be_written_keeps_nothing_and_raises_nothing(place):
    with telemetry.record() as events:
        assert not MeasurementStore(Path(place)).put([row()])
    assert telemetry.counts() == {"tuned_store_failed": 1}
    assert [e["event"] for e in events] == ["tuned_store_failed"]


@pytest.mark.parametrize("name", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)], ids=["fifo", "dir", "device"]
)
def test_what_is_no_regular_file_is_never_opened(store, monkeypatch, name, make):
    """A FIFO would block forever without a writer."""
    store.put([row()])
    path = store.path.with_name(store.path.name + name)
    path.unlink(missing_ok=True)
    make(path)
    monkeypatch.setattr(sqlite3, "connect", lambda *words, **more: pytest.fail("SQLite opened it"))
    assert store.rows() == ()
    assert not store.put([row()])
    assert telemetry.counts() == {"tuned_store_failed": 2}


def test_a_file_too_large_to_be_a_table_is_not_read(store, monkeypatch):
    store.path.parent.mkdir()
    store.path.touch()
    os.truncate(store.path, 1 << 40)
    monkeypatch.setattr(sqlite3, "connect", lambda *words, **more: pytest.fail("SQLite opened it"))
    assert store.rows() == ()


def test_a_full_disk_raises_nothing(store, monkeypatch):
    def full(*words, **more):
        raise sqlite3.OperationalError("database or disk is full")

    store.put([row()])
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", full)
        assert not store.put([row("other")])
        assert store.rows() == ()
    assert store.rows() == (row(),)
    assert telemetry.counts() == {"tuned_store_failed": 2}


def test_a_database_of_a_later_version_is_left_as_it_is(store):
    store.put([row()])
    with sqlite3.connect(store.path) as database:
        database.execute("PRAGMA user_version=99")
    assert store.rows() == ()
    assert not store.put([row()])
    assert sqlite3.connect(store.path).execute("SELECT count(*) FROM tuned").fetchone() == (1,)


def test_what_cannot_be_opened_for_writing_can_be_read(store, monkeypatch):
    store.put([row()])
    connect = sqlite3.connect

    def read_only(place, **how):
        if "immutable" not in str(place):
            raise sqlite3.OperationalError("unable to open database file")
        return connect(place, **how)

    monkeypatch.setattr(sqlite3, "connect", read_only)
    assert store.rows() == (row(),)
    assert not store.put([row("other")])
    assert telemetry.counts() == {"tuned_store_failed": 1}


def test_reading_writes_nothing(store):
    store.put([row()])
    before = {p.name: p.stat().st_mtime_ns for p in store.path.parent.iterdir() if p.suffix == ".db"}
    assert store.rows() == (row(),)
    assert {p.name: p.stat().st_mtime_ns for p in store.path.parent.iterdir() if p.suffix == ".db"} == before


def test_a_network_file_system_gets_no_wal(store, monkeypatch, tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\nbroken\ndisk {tmp_path}/place/local xfs rw 0 0\n")
    assert on_network(store.path, mounts)
    assert not on_network(tmp_path / "place/local/tune.db", mounts)
    assert not on_network(store.path, tmp_path / "absent")
    monkeypatch.setattr("opfacade.select.measurement_store.on_network", lambda path: True)
    assert store.put([row()])
    assert store.rows() == (row(),)
    assert sqlite3.connect(store.path).execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_table_of_other_columns_raises_nothing(store):
    store.path.parent.mkdir()
    with sqlite3.connect(store.path) as database:
        database.execute("CREATE TABLE tuned (a, b)")
    assert store.rows() == ()
    assert not store.put([row()])


POISON = {
    "rubbish": lambda r: "rubbish",
    "nothing": lambda r: None,
    "no number": lambda r: r | {"gain": "much"},
    "negative": lambda r: r | {"measured": [m | {"median_us": -1} for m in r["measured"]]},
    "infinite": lambda r: r | {"measured": [m | {"median_us": float("inf")} for m in r["measured"]]},
    "unmeasured winner": lambda r: r | {"winner": "c"},
    "loser as winner": lambda r: r | {"winner": "a"},
    "unmeasured incumbent": lambda r: r | {"incumbent": "c"},
    "twice": lambda r: r | {"measured": [r["measured"][0]] * 2},
    "wrong result": lambda r: r | {"measured": [m | {"worst": 7.0} for m in r["measured"]]},
    "later version": lambda r: r | {"schema_version": 2},
    "another key": lambda r: r | {"key": "other"},
    "deep": lambda r: "[" * 100_000,
    "deep field": lambda r: json.dumps(r)[:-1] + ', "more": ' + "[" * 5000 + "]" * 5000 + "}",
    "a name twice": lambda r: json.dumps(r)[:-1] + ', "winner": "b"}',
    "many digits": lambda r: json.dumps(r)[:-1] + ', "gain": ' + "9" * 5000 + "}",
}


@pytest.mark.parametrize("name", POISON)
def test_a_poisoned_row_is_passed_over_and_counted(store, name):
    store.put([row(), row("sound")])
    text = POISON[name](json.loads(row().model_dump_json()))
    with sqlite3.connect(store.path) as database:
        database.execute("UPDATE tuned SET row = ? WHERE key = 'k'", (text if isinstance(text, str) else json.dumps(text),))
    with telemetry.record() as events:
        assert [r.key for r in store.rows()] == ["sound"]
    if name != "another key":  # a valid row in the wrong place is harmless, but useless
        assert telemetry.counts() == {"tuned_row_poisoned": 1}
        assert events[0]["event"] == "tuned_row_poisoned"


def _put(path, name, go):
    go.wait(120)
    kept = [MeasurementStore(path).put([row(f"{name}-{i}", winner="ab"[i % 2])]) for i in range(5)]
    os._exit(0 if all(kept) else 1)


@pytest.mark.parametrize("one_key", [False, True])
def test_sixteen_writers_lose_nothing_and_leave_one_row_a_key(store, one_key):
    context = multiprocessing.get_context("fork")
    go = context.Event()
    processes = [context.Process(target=_put, args=(store.path, 0 if one_key else n, go)) for n in range(16)]
    [p.start() for p in processes]
    go.set()
    [p.join(240) for p in processes]
    assert {p.exitcode for p in processes} == {0}
    assert len(store.rows()) == (5 if one_key else 80)
    assert telemetry.counts() == {}


@pytest.mark.parametrize("use", ["_write", "_read"])
def test_a_file_locked_for_a_moment_is_tried_again(store, use, monkeypatch):
    """SQLite reports a locked file immediately, without waiting, if two processes open or close one."""
    store.put([row()])
    locked, sound = iter([True, True, False]), getattr(MeasurementStore, use)

    def busy(*arguments):
        if next(locked):
            raise sqlite3.OperationalError("database is locked")
        return sound(*arguments)

    monkeypatch.setattr(MeasurementStore, use, busy)
    assert store.put([row("other")]) if use == "_write" else store.rows() == (row(),)
    assert telemetry.counts() == {}


def test_a_table_is_shipped_and_read_back():
    rows = (row("b"), row("a"), row("a", winner="a", hardware="g"))
    text = export(rows)
    assert set(parse(text)) == set(rows)
    assert export(reversed(rows)) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"opfacade_tuned": 2, "rows": []}', '{"opfacade_tuned": 1, "rows": 7}', "\xff", b"\xff", "[" * 100_000,
        '{"opfacade_tuned": 1, "rows": [], "rows": []}', '{"opfacade_tuned": 1, "rows": [' + "[" * 5000 + "]" * 5000 + "]}",
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused(text):
    with pytest.raises(DescriptorError, match=r"OPF-(T004|D006)"):
        parse(text)


def test_poisoned_rows_of_a_table_are_passed_over():
    table = json.loads(export([row("sound"), row("bad")]))
    table["rows"][0]["winner"] = "gone"
    assert [r.key for r in parse(json.dumps(table))] == ["sound"]


def test_a_sound_row_is_itself():
    assert sound(row().model_dump_json()) == row()


def test_a_sku_that_was_measured_twice_makes_no_row():
    """The choice follows from the measurements; one SKU has two."""
    twice = sound(row().model_dump_json())
    assert twice is not None
    doubled = twice.model_copy(update={"measured": (*twice.measured, twice.measured[-1])})
    decision = decide(doubled.measured, doubled.incumbent)
    assert (decision.winner, decision.incumbent) == (doubled.winner, doubled.incumbent)
    assert sound(doubled.model_dump_json()) is None
