"""One process of bench.soak: threads that run plans, and threads that reset counters, fork, publish and clean meanwhile."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch

from opfacade import Plan, Preference, Target, telemetry
from opfacade import plan as plans
from opfacade.jit import cache
from opfacade.jit.cache import upkeep
from opfacade.plans.norm import NormArgs, NormDescriptor
from opfacade.plans.softmax import SoftmaxDescriptor
from opfacade.telemetry import file as telemetry_file

CPU = Target.cpu()
CHILD_SECONDS = 16.0
LEAST_WORK = 0.02  # CPU seconds: a process that uses less in a window hangs
MOST_WINDOWS = 20  # maximum number of such windows for a process that makes progress
_OWN = threading.local()
_KEYS = 40  # cache entries that all processes publish repeatedly


def drawn(random: Random, *shape: int) -> torch.Tensor:
    """Random numbers from a separate generator, because the lock of the default generator may be held when a child is
    forked."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(random.getrandbits(32)))


def run_norm(random: Random, device: str = "cpu") -> None:
    rows, hidden = random.randint(1, 9), random.randint(1, 4000)
    x, weight = drawn(random, rows, hidden).to(device), drawn(random, hidden).to(device)
    out = torch.full_like(x, torch.nan)
    plan = _selected(NormDescriptor(kind="rms", total_num_rows=rows, hidden=hidden, dtype="f32"), device)
    plan.run(NormArgs(x=x, weight=weight, out=out))
    eps = plan.descriptor.eps
    torch.testing.assert_close(out, x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight, rtol=1e-4, atol=1e-5)


def run_softmax(random: Random, device: str = "cpu") -> None:
    shape = (random.randint(1, 9), random.randint(1, 4000))
    x = drawn(random, *shape).to(device)
    descriptor = SoftmaxDescriptor(shape=shape, dtype="f32")
    out = torch.full_like(x, torch.nan)
    _selected(descriptor, device).run(descriptor.args_type(x=x, out=out))
    torch.testing.assert_close(out, x.softmax(-1), rtol=1e-4, atol=1e-6)


def _selected(descriptor: Any, device: str) -> Any:
    return Plan.select(descriptor, Preference(backend="cuda")) if device == "cuda" else Plan.select(descriptor, target=CPU)


RUNS = (run_norm, run_softmax)


def settle(sizes: int, device: str) -> None:
    """Selects this many sizes of each op. A process caches up to 1,024 results of each step of selection, 16 KB per size, then
    clears the cache and reuses the memory, so its memory is constant after 2,400 sizes of an op."""
    for number in range(sizes):
        rows, columns = 1 + number % 9, 1 + number % 4000
        _selected(NormDescriptor(kind="rms", total_num_rows=rows, hidden=columns, dtype="f32"), device)
        _selected(SoftmaxDescriptor(shape=(rows, columns), dtype="f32"), device)


def cpu_seconds(process: int) -> float:
    """The CPU time of a process; after its end, the final value."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _on_own_stream(run: Callable[[Random, str], None], random: Random, device: str) -> None:
    """Each thread uses its own stream, as in a server."""
    if device == "cpu":
        run(random, device)
        return
    if not hasattr(_OWN, "stream"):
        _OWN.stream = torch.cuda.Stream()
    with torch.cuda.stream(_OWN.stream):
        run(random, device)
    _OWN.stream.synchronize()


class Soaking:
    """The work of one process until a deadline. Returns the errors, and the number of runs."""

    def __init__(self, number: int, seconds: float, device: str = "cpu") -> None:
        self.number, self.over, self.device = number, time.monotonic() + seconds, device
        self.runs, self.forks, self.swept, self.errors = 0, 0, 0, list[str]()
        self._lock = threading.Lock()

    def loop(self, work: Callable[[Random], None], seed: int, pause: float) -> None:
        random = Random(1000 * self.number + seed)
        while time.monotonic() < self.over and not self.errors:
            try:
                work(random)
            except BaseException as error:  # an exception in a thread would be lost
                self.errors.append(f"{type(error).__name__}: {error}"[:2000])
            time.sleep(pause * random.random())

    def run(self, random: Random) -> None:
        _on_own_stream(random.choice(RUNS), random, self.device)
        with self._lock:
            self.runs += 1

    def warm_up(self) -> None:
        """Imports all backends before any fork: the first selection of a family imports them, and a child that is forked
        meanwhile would wait forever, because Python does not renew the import lock of a module."""
        for run in RUNS:
            for device in {self.device, "cpu"}:  # children use the reference: CUDA does not work after a fork
                run(Random(self.number), device)
                self.runs += 1

    def forget(self, random: Random) -> None:
        telemetry.reset()
        telemetry.snapshot()

    def fork(self, random: Random) -> None:
        """The work of a forked child: it resets its counters or continues the parent's, runs a few plans, and exits
        normally."""
        forgets, count = random.random() < 0.5, random.randint(1, 5)
        child = os.fork()
        if not child:
            os._exit(_child(forgets, count, random))
        status = _wait(child)
        if status != 0:
            raise RuntimeError(f"a child that {'forgets' if forgets else 'counts on'} ended with {status}")
        with self._lock:
            self.forks, self.runs = self.forks + 1, self.runs + count

    def publish(self, random: Random) -> None:
        """Publishes and reads an entry that other processes also publish, read and collect."""
        key = f"{random.randrange(_KEYS):064x}"
        library = cache.obtain(key, "kernel.so", _make)
        with contextlib.suppress(FileNotFoundError):  # another process may collect it at any time
            if library.read_bytes() != b"soak":
                raise RuntimeError(f"{library} has other bytes than were published")

    def sweep(self, random: Random) -> None:
        store = cache.shared()
        store.sweep()
        upkeep.collect(store, max_bytes=random.choice((100, 10_000)))
        self.swept += 1


def _make(directory: Path) -> dict[str, Any]:
    (directory / "kernel.so").write_bytes(b"soak")
    return {}


def _child(forgets: bool, count: int, random: Random) -> int:
    """The exit code: 0, or the error. Ends with os._exit, because a child must not run its parent's exit handlers."""
    try:
        if forgets:
            telemetry.reset()
        for _ in range(count):
            run_norm(random)
        telemetry_file._stop()
    except BaseException as error:
        print(f"child: {error!r}", file=sys.stderr, flush=True)
        return 3
    return 0


def _wait(child: int) -> int:
    """The exit code of a child; -1 if it used no CPU for a while, which counts as a hang. Elapsed time alone does not show a
    hang, because the machine may be busy."""
    used, until, windows = 0.0, time.monotonic() + CHILD_SECONDS, MOST_WINDOWS
    while windows:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
        if time.monotonic() > until:
            before, used = used, cpu_seconds(child)
            until, windows = until + CHILD_SECONDS, windows - 1 if used > before + LEAST_WORK else 0
    os.kill(child, signal.SIGUSR1)  # prints its stack to stderr
    time.sleep(1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(over: float) -> tuple[int, int]:
    """The bytes by which this process grew in its second half, and its bytes at the end."""
    began = time.monotonic()
    marks: list[tuple[float, int]] = []
    while time.monotonic() < over - 0.2:
        time.sleep(min(0.5, max(over - time.monotonic(), 0.0)))
        marks.append((time.monotonic(), resident()))
    half = [held for at, held in marks if at > (began + over) / 2] or [resident()]
    third = max(len(half) // 3, 1)
    return max(min(half[-third:]) - max(half[:third]), 0), half[-1]


def main(number: int, threads: int, seconds: float, most_plans: int, device: str, sizes: int) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    plans._MAX_CACHED = most_plans
    telemetry_file.start()
    settle(sizes, device)
    soaking = Soaking(number, seconds, device)
    soaking.warm_up()
    work = [(soaking.run, 0.0)] * threads + [(soaking.fork, 0.5), (soaking.publish, 0.05), (soaking.sweep, 0.3)]
    work += [(soaking.forget, 0.05)] if number == 0 else []
    started = [threading.Thread(target=soaking.loop, args=(do, seed, pause)) for seed, (do, pause) in enumerate(work)]
    for thread in started:
        thread.start()
    grown, held = growth(soaking.over)
    for thread in started:
        thread.join()
    told = {"runs": soaking.runs, "forks": soaking.forks, "sweeps": soaking.swept, "errors": soaking.errors}
    print(json.dumps(told | {"grown_bytes": grown, "resident_bytes": held}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
