"""Sampled run times: every n-th run is timed, nothing waits, and captured work is not timed."""

import gc
import os
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from opfacade import telemetry
from opfacade.base import notices
from opfacade.errors import DroppedWarning
from opfacade.telemetry import histogram
from opfacade.telemetry import latency as telemetry_latency
from tests.support.problems import decode, on_reference

pytestmark = pytest.mark.usefixtures("fresh_telemetry")
HOST, DEVICE = SimpleNamespace(id="a/b/reference", backend="reference"), SimpleNamespace(id="a/b/cuda", backend="cuda")


def launch(args, workspace):
    args.append(workspace)


def samples(sku):
    return telemetry.snapshot()[sku.id].get("latency", {}).get("samples", 0)


def sampled(monkeypatch, share, sku):
    monkeypatch.setenv("OPFACADE_TELEMETRY_SAMPLE", share)
    return telemetry_latency.wrap(launch, sku)


class Clock:
    """CUDA events whose completion the test controls."""

    def __init__(self):
        self.over, self.made, self.capturing = 0, [], False

    def event(self, enable_timing=False):
        assert enable_timing
        self.made.append(event := Event(self, len(self.made)))
        return event


class Event:
    def __init__(self, clock, number):
        self.clock, self.number, self.recorded = clock, number, False

    def record(self, stream):
        self.recorded, self.stream = True, stream

    def query(self):
        assert self.recorded
        assert not self.clock.capturing
        return self.number < self.clock.over

    def elapsed_time(self, stop):
        assert stop.query()
        return 0.25

    def synchronize(self):
        pytest.fail("something waited")


@pytest.fixture
def clock(monkeypatch):
    import torch

    clock = Clock()
    monkeypatch.setattr(torch.cuda, "Event", clock.event)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: clock.capturing)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *words: pytest.fail("something waited"))
    return clock


@pytest.mark.parametrize("share", ["", "0"])
def test_nothing_stands_around_a_launcher_by_default(monkeypatch, share):
    assert sampled(monkeypatch, share, HOST) is launch


@pytest.mark.parametrize(("share", "wanted"), [("1", 40), ("0.25", 10), ("0.01", 1)])
def test_every_nth_run_is_timed_and_every_run_is_run(monkeypatch, share, wanted):
    timed, ran = sampled(monkeypatch, share, HOST), []
    for number in range(40):
        timed(ran, number)
    assert ran == list(range(40))
    assert samples(HOST) == wanted


def test_device_times_are_read_when_they_are_over_and_never_waited_for(monkeypatch, clock):
    timed, ran = sampled(monkeypatch, "1", DEVICE), []
    for _ in range(3):
        timed(ran, None)
    assert samples(DEVICE) == 0
    clock.over = 4  # the first two pairs
    timed(ran, None)
    assert samples(DEVICE) == 2
    assert telemetry.snapshot()[DEVICE.id]["latency"]["sum_us"] == 500.0
    assert len(ran) == 4


def test_a_call_of_a_library_is_timed_on_the_device_as_a_kernel_is(monkeypatch, clock):
    """The host only starts it."""
    timed, ran = sampled(monkeypatch, "1", SimpleNamespace(id="a/b/library", backend="library")), []
    timed(ran, None)
    assert [event.recorded for event in clock.made] == [True, True]


def test_a_device_that_is_far_behind_costs_bounded_memory(monkeypatch, clock):
    timed, ran = sampled(monkeypatch, "1", DEVICE), []
    for _ in range(500):
        timed(ran, None)
    clock.over = 10**9
    timed(ran, None)
    assert samples(DEVICE) == telemetry_latency._PENDING


def test_events_are_recorded_where_the_tensors_are(monkeypatch, clock):
    class Bundle:
        __slots__ = ("absent", "x")

    bundle = Bundle()
    bundle.x, bundle.absent = SimpleNamespace(device=torch.device("cuda:1")), None
    monkeypatch.setenv("OPFACADE_TELEMETRY_SAMPLE", "1")
    switched = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: switched.append(device) or nullcontext())
    timed = telemetry_latency.wrap(lambda args, workspace: None, DEVICE)
    timed(bundle, None)
    assert [event.stream for event in clock.made] == ["stream of cuda:1"] * 2
    assert switched == [torch.device("cuda:1")]  # a capture is simulated there


def test_the_child_of_a_fork_destroys_no_event_of_its_parent(monkeypatch, clock):
    """CUDA does not work in a child, and torch destroys an event with a call of CUDA."""
    timed, destroyed, parent = sampled(monkeypatch, "1", DEVICE), [], os.getpid()
    gc.collect()  # events of other tests
    monkeypatch.setattr(Event, "__del__", lambda event: destroyed.append(os.getpid()), raising=False)
    clock.made.clear()
    timed([], None)
    clock.made.clear()  # only the launcher refers to them now
    child = os.fork()
    if not child:
        del timed
        gc.collect()
        os._exit(len([one for one in destroyed if one != parent]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del timed
    gc.collect()
    assert destroyed == [parent] * 2  # the parent's events are freed with the launcher


def test_a_captured_launch_gets_no_events_and_asks_none(monkeypatch, clock):
    timed, ran = sampled(monkeypatch, "1", DEVICE), []
    timed(ran, None)
    clock.capturing = True
    timed(ran, None)
    assert ran == [None, None]
    assert len(clock.made) == 2


def test_a_launch_that_fails_is_not_timed(monkeypatch, clock):
    monkeypatch.setenv("OPFACADE_TELEMETRY_SAMPLE", "1")
    timed = telemetry_latency.wrap(lambda args, workspace: 1 / 0, DEVICE)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            timed([], None)
    clock.over = 10**9
    with pytest.raises(ZeroDivisionError):
        timed([], None)
    assert samples(DEVICE) == 0


@pytest.mark.parametrize("broken", ["event", "record", "query"])
def test_a_device_that_gives_no_times_breaks_no_run(monkeypatch, clock, broken):
    def fail(*given, **named):
        raise RuntimeError("CUDA error: out of resources")

    monkeypatch.setattr(notices, "_told", {})
    timed, ran = sampled(monkeypatch, "1", DEVICE), []
    timed(ran, 0)
    monkeypatch.setattr(*((clock, "event") if broken == "event" else (Event, broken)), fail)
    monkeypatch.setattr(torch.cuda, "Event", clock.event)
    with pytest.warns(DroppedWarning, match="OPFACADE_TELEMETRY_SAMPLE") as warned:
        timed(ran, 1), timed(ran, 2)
    assert ran == [0, 1, 2]
    assert len(warned) == 1
    assert telemetry.counts() == {"latency_samples_dropped": 1 if broken == "query" else 2}


def test_eight_threads_lose_no_sample(monkeypatch):
    timed = sampled(monkeypatch, "1", HOST)
    threads = [threading.Thread(target=lambda: [timed([], None) for _ in range(500)]) for _ in range(8)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert samples(HOST) == 4000


def test_the_histogram_puts_a_time_between_its_ends():
    latency = telemetry.Latency()
    for microseconds in (0.5, 1.0, 1.1, 99.0, 2e7):
        latency.add(microseconds)
    found = latency.as_dict()
    counted = {end: n for end, n in zip((*histogram.LATENCY_ENDS, None), found["counts"], strict=True) if n}
    assert counted == {1.0: 2, 2.0: 1, 100.0: 1, None: 1}
    assert (found["samples"], found["sum_us"]) == (5, pytest.approx(2e7 + 101.6))
    assert list(histogram.LATENCY_ENDS) == sorted(histogram.LATENCY_ENDS)


def test_a_plan_is_sampled_end_to_end(monkeypatch):
    monkeypatch.setenv("OPFACADE_TELEMETRY_SAMPLE", "0.5")
    descriptor, args = decode([3])
    plan = on_reference(descriptor)
    for _ in range(4):
        plan.run(args)
    found = telemetry.snapshot()[plan.sku.id]
    assert (found["runs"], found["latency"]["samples"]) == (4, 2)
    assert found["latency"]["sum_us"] > 0


def test_a_time_of_the_host_is_that_of_the_launch_in_microseconds(monkeypatch):
    now = [10**9]
    monkeypatch.setattr(telemetry_latency.time, "perf_counter_ns", lambda: now[0])
    monkeypatch.setenv("OPFACADE_TELEMETRY_SAMPLE", "1")

    def takes_7_ms(args, workspace):
        now[0] += 7_000_000

    telemetry_latency.wrap(takes_7_ms, HOST)([], None)
    assert telemetry.snapshot()[HOST.id]["latency"]["sum_us"] == 7000.0
