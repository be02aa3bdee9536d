"""Counters lose nothing, and events are sent only to subscribers."""

import threading
from contextlib import suppress

import pytest

from opfacade import Plan, Preference, Target, telemetry
from opfacade.errors import ArgumentTypeError, DroppedWarning, UnsupportedError
from opfacade.observe import instruments
from tests.support.problems import REFERENCE, decode, on_reference

pytestmark = pytest.mark.usefixtures("fresh_telemetry")


def test_selects_and_runs_are_counted():
    descriptor, args = decode([3])
    plan = on_reference(descriptor)
    on_reference(descriptor)
    for _ in range(3):
        plan.run(args)
    counted = {"selects": 2, "runs": 3, "builds": 0, "loads": 1, "cache_hits": 0, "fallbacks": 0, "spills": 0}
    assert telemetry.snapshot() == {plan.sku.id: counted | {"build_seconds": 0.0}}


def test_a_refused_call_is_no_run():
    descriptor, args = decode([3])
    plan = on_reference(descriptor)
    args.lse.resize_(2, 4)
    with pytest.raises(ValueError, match="OPF-A011"):
        plan.run(args)
    assert telemetry.snapshot()[plan.sku.id]["runs"] == 0


def test_eight_threads_lose_no_run():
    descriptor, args = decode([], page_table="block")
    plan = on_reference(descriptor)
    threads = [threading.Thread(target=lambda: [plan.run(args) for _ in range(300)]) for _ in range(8)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert telemetry.snapshot()[plan.sku.id]["runs"] == 2400


def test_eight_threads_lose_no_count():
    def work():
        for _ in range(5000):
            telemetry.stats("x").runs.add()
            telemetry.count_refusal("OPF-S001")
            telemetry.count_build("x", 0.5)

    threads = [threading.Thread(target=work) for _ in range(8)]
    [t.start() for t in threads], [t.join() for t in threads]
    found = telemetry.snapshot()["x"]
    assert (found["runs"], found["builds"], found["build_seconds"]) == (40000, 40000, 20000.0)
    assert telemetry.refusals() == {"OPF-S001": 40000}


def test_refusals_are_counted_by_code():
    descriptor, _ = decode([3])
    for _ in range(2):
        with pytest.raises(UnsupportedError):
            Plan.select(descriptor, Preference(backend="reference", require="deterministic"), Target.cpu())
    assert telemetry.refusals()["OPF-S020"] == 2


def test_record_collects_the_events_of_its_block_only():
    descriptor, args = decode([3])
    plan = on_reference(descriptor)
    plan.run(args)
    with telemetry.record() as events:
        on_reference(descriptor).run(args)
    plan.run(args)
    op, sku = "paged_decode", plan.sku.id
    assert events == [{"event": "select", "sku": sku, "op": op}, {"event": "run", "sku": sku, "op": op}]


def test_the_first_run_tells_of_a_load():
    descriptor, args = decode([3])
    with telemetry.record() as events:
        on_reference(descriptor).run(args)
    assert [e["event"] for e in events if e["event"] != "refuse"] == ["select", "load", "run"]


def test_a_refusal_is_an_event_with_its_codes():
    descriptor, _ = decode([3])
    with telemetry.record() as events, pytest.raises(UnsupportedError):
        Plan.select(descriptor, Preference(backend="reference", require="deterministic"), Target.cpu())
    event = next(e for e in events if e.get("candidate") == "reference/torch")
    assert event == {"event": "refuse", "op": "paged_decode", "candidate": "reference/torch", "codes": ["OPF-S020"]}


def test_unsubscribing_ends_one_sink_and_not_the_others():
    first, second = [], []
    end_first, end_second = telemetry.subscribe(first.append), telemetry.subscribe(second.append)
    telemetry.emit("build", sku="x")
    end_first()
    end_first()
    telemetry.emit("build", sku="y")
    end_second()
    telemetry.emit("build", sku="z")
    assert [e["sku"] for e in first] == ["x"]
    assert [e["sku"] for e in second] == ["x", "y"]
    assert not telemetry.listening()


def test_record_ends_when_its_block_raises():
    with pytest.raises(KeyError), telemetry.record():
        raise KeyError
    assert not telemetry.listening()


def test_each_sink_gets_an_event_of_its_own():
    with telemetry.record() as first, telemetry.record() as second:
        telemetry.emit("build", sku="x")
    first[0]["sku"] = "changed"
    assert second == [{"event": "build", "sku": "x"}]


def test_nothing_is_emitted_while_nobody_listens(monkeypatch):
    descriptor, args = decode([3])
    on_reference(descriptor).run(args)
    monkeypatch.setattr(telemetry, "emit", lambda *a, **k: pytest.fail("an event was made"))
    on_reference(descriptor).run(args)
    with pytest.raises(UnsupportedError):
        Plan.select(descriptor, REFERENCE.model_copy(update={"pin": "none"}), Target.cpu())


def test_reset_forgets_everything():
    telemetry.stats("x").runs.add()
    telemetry.count_refusal("OPF-S001")
    telemetry.reset()
    assert telemetry.snapshot() == {}
    assert telemetry.refusals() == {}


def test_reading_a_counter_does_not_advance_it():
    counter = telemetry.Counter()
    counter.add(), counter.add()
    assert [counter.value(), counter.value()] == [2, 2]


@pytest.mark.parametrize("stored", [True, False])
def test_a_reset_between_the_look_at_a_histogram_and_its_use_breaks_no_run(stored):
    """`stats` and `reset` in two threads: a sample may be lost, but the run may not fail."""
    kept = telemetry.SkuStats.latency

    class Raced(telemetry.SkuStats):
        """Another thread resets all counters after each read of the histogram, or as soon as it exists."""

        __slots__ = ()

        @property
        def latency(self):
            found = kept.__get__(self)
            kept.__set__(self, None)
            return found

        @latency.setter
        def latency(self, value):
            kept.__set__(self, value if stored else None)

    found = Raced()
    found.time(1.0)
    found.time(2.0)
    kept.__set__(found, telemetry.Latency())
    assert found.as_dict()["latency"]["samples"] == 0


def test_events_of_a_block_are_told_after_it_and_in_order():
    told = []
    end = telemetry.subscribe(told.append)
    with telemetry.held_back():
        telemetry.emit("build", sku="x")
        with telemetry.held_back():
            telemetry.emit("load", sku="y")
        assert told == []
    telemetry.emit("load", sku="z")
    with suppress(KeyError), telemetry.held_back():
        telemetry.emit("build", sku="w")
        raise KeyError
    end()
    assert [event["sku"] for event in told] == ["x", "y", "z", "w"]


@pytest.mark.timeout(60)
def test_a_sink_may_run_the_plan_that_is_being_built(monkeypatch):
    """The event of a build is emitted during the load of a plan, which holds the plan's lock."""
    descriptor, args = decode([3])
    plan = on_reference(descriptor)
    whole = instruments.launcher

    def built(*given):
        telemetry.emit("build", sku=plan.sku.id)
        return whole(*given)

    monkeypatch.setattr(instruments, "launcher", built)
    ran = []
    end = telemetry.subscribe(lambda event: event["event"] == "build" and (plan.run(args), ran.append(1)))
    plan.run(args)
    end()
    assert ran == [1]
    assert telemetry.counts().get("listener_failures", 0) == 0


def test_plans_go_on_counting_after_a_reset():
    descriptor, args = decode([4])
    on_reference(descriptor).run(args)
    telemetry.reset()
    assert telemetry.snapshot() == {}
    plan = on_reference(descriptor)
    plan.run(args)
    counted = telemetry.snapshot()[plan.sku.id]
    assert (counted["selects"], counted["runs"], counted["build_seconds"]) == (1, 1, 0.0)


class Hostile(Exception):
    def __str__(self):
        raise RuntimeError


def broken_sink(event):
    raise Hostile


class BrokenRecorder:
    def selected(self, plan):
        raise KeyError

    ran = property(lambda self: self._ran)

    def _ran(self, plan, args):
        raise RecursionError


def attached(what):
    return telemetry.attach(what) if isinstance(what, BrokenRecorder) else telemetry.subscribe(what)


@pytest.mark.parametrize("what", [broken_sink, BrokenRecorder()], ids=["sink", "recorder"])
def test_a_listener_that_raises_breaks_no_run_and_no_other_listener(what):
    descriptor, args = decode([3])
    end = attached(what)

    def work():
        with telemetry.record() as events:
            plan = on_reference(descriptor)
            plan.run(args), plan.run(args)
        return events

    with pytest.warns(DroppedWarning, match=r"failed: .*telemetry\.counts") as warned:
        events = work()
    end()
    assert [e["event"] for e in events if e["event"] != "refuse"] == ["select", "load", "run", "run"]
    assert not args.o.isnan().any()
    assert len(warned) == 1
    assert telemetry.counts()["listener_failures"] >= 3


def test_a_listener_that_fails_ten_times_in_a_row_is_told_no_more():
    heard = []

    def sink(event):
        heard.append(event["n"])
        if event["n"] != 5:
            raise ValueError(event["n"])

    telemetry.subscribe(sink)
    with pytest.warns(DroppedWarning) as warned:
        [telemetry.emit("build", n=n) for n in range(30)]
    assert heard == list(range(16))  # five failures, a success, ten failures
    assert not telemetry.listening()
    assert telemetry.counts()["listener_failures"] == 15
    assert [("no more" in str(w.message)) for w in warned.list] == [False, True]


def test_keyboard_interrupt_passes_a_listener():
    def sink(event):
        raise KeyboardInterrupt

    end = telemetry.subscribe(sink)
    with pytest.raises(KeyboardInterrupt):
        telemetry.emit("build", sku="x")
    end()


@pytest.mark.parametrize("what", [None, "print", 1])
@pytest.mark.parametrize("function", [telemetry.subscribe, telemetry.attach])
def test_a_listener_that_cannot_be_told_is_refused_at_once(function, what):
    with pytest.raises(ArgumentTypeError, match=rf"telemetry.{function.__name__}: .* expected .*OPF-E012") as caught:
        function(what)
    assert isinstance(caught.value, TypeError)
    assert not telemetry._watched
    assert caught.value.code == "OPF-E012"


def test_a_sink_that_runs_plans_is_a_listener_that_fails():
    descriptor, args = decode([3])
    plan = on_reference(descriptor)
    end = telemetry.subscribe(lambda event: plan.run(args))
    with pytest.warns(DroppedWarning, match="RecursionError"):
        plan.run(args)
    end()
    assert not args.o.isnan().any()
