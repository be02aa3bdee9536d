"""Counters as JSON lines in a file that any number of processes share: a thread appends what was counted so far.

A run writes nothing and waits for nothing. Each line holds all counts of its process since it began, so a line that a full disk
swallowed costs no count: the next one has it. Lines are appended by one system call each, so writers of one host
do not mix; on NFS each host needs a file of its own.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opfacade import env, telemetry
from opfacade.base import json_text, line_file, notices, regular_files, strict_json
from opfacade.base.fork_lock import ForkLock
from opfacade.errors import DroppedWarning

INTERVAL = 10.0
_MOST_BYTES, _LONGEST_LINE = 1 << 40, 16 << 20
_MOST_COUNTED = 2**63
_HEAD = b'{"pid": '  # how each line begins, and no value in it
_guard = ForkLock()
_writer: Writer | None = None


class Writer:
    """Appends the counters of this process, less `before`, to a file, every `interval` seconds and at `stop`."""

    def __init__(self, path: str, interval: float = INTERVAL, before: Mapping[str, Any] | None = None) -> None:
        self._file, self.failures = line_file.LineFile(path), 0
        self._identity = {"pid": os.getpid(), "since": time.time_ns()}
        self._interval, self._last = interval, ""
        self._before, self._resets = before or {}, telemetry.resets()
        self._writing = ForkLock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="opfacade-telemetry", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads for this process: what is counted is written at its end
            _tell(f"{error}; counters are written when the process ends.")

    def _work(self) -> None:
        while not self._over.wait(self._interval):
            self.write()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self.write()

    def write(self) -> bool:
        """Append one line if anything was counted since the last. False on failure, which is counted and warned of once.
        A FIFO without a reader is such a failure: nothing waits for a reader."""
        with self._writing:  # the last line of a process counts: its counts are never those of an earlier moment
            return self._write()

    def _write(self) -> bool:
        if telemetry.resets() != self._resets:  # what was counted before is forgotten, so nothing is to be taken off
            self._before, self._resets = {}, telemetry.resets()
        now = json_text.text(without(counted(), self._before), sort_keys=True)
        if now == self._last:
            return True
        head = json.dumps({**self._identity, "time": round(time.time(), 3), "failures": self.failures})
        try:
            self._file.append(f"{head[:-1]}, {now[1:]}\n")
        except OSError as error:
            self.failures += 1
            _tell(f"{error}; later lines have what this one had.")
            return False
        self._last = now
        return True


def _tell(reason: str) -> None:
    notices.tell_once("OPFACADE_TELEMETRY_FILE", f"OPFACADE_TELEMETRY_FILE: {reason} [OPF-E002]", DroppedWarning)


def counted() -> dict[str, Any]:
    """All counters of this process, as a line holds them."""
    return {"skus": telemetry.snapshot(), "refusals": telemetry.refusals(), "counts": telemetry.counts()}


def without(now: Any, before: Any) -> Any:
    """`now` less what `before` had, number by number; what did not change is left out of mappings."""
    if isinstance(now, Mapping):
        less = {name: without(value, (before or {}).get(name)) for name, value in now.items()}
        return {name: value for name, value in less.items() if value or name in ("skus", "refusals", "counts")}
    if isinstance(now, list):
        return [without(a, b) for a, b in zip(now, before or [0] * len(now), strict=True)]
    return now - (before or 0)


def added(one: Any, other: Any) -> Any:
    """The sum of two counts, mappings and lists of them; None counts as nothing."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, Mapping):
        return {name: added(one.get(name), other.get(name)) for name in {**one, **other}}
    if isinstance(one, list):
        return [added(a, b) for a, b in zip(one, other, strict=True)]
    return one + other


def start() -> None:
    """Write to OPFACADE_TELEMETRY_FILE from now on, if it is set and nothing writes there yet."""
    global _writer
    path = env.telemetry_file()
    if path is None or _writer is not None:
        return
    with _guard:
        if _writer is None:
            _writer = Writer(path)


def _stop() -> None:
    if _writer is not None:
        _writer.stop()


def _after_fork() -> None:
    """A child's counts go into lines of its own, since threads do not survive a fork."""
    global _writer
    path = env.telemetry_file()
    if _writer is not None and path is not None:
        # A child counts on from its parent's counts, which the parent itself reports.
        _writer = Writer(path, before=counted())


atexit.register(_stop)
os.register_at_fork(after_in_child=_after_fork)


def read(path: Path) -> tuple[dict[str, Any], int]:
    """The sum over all processes of what a regular file says, and how many of its lines say nothing."""
    last: dict[tuple[int, int], dict[str, Any]] = {}
    broken = 0
    with regular_files.open_regular(path, _MOST_BYTES) as file:
        for line in iter(lambda: file.readline(_LONGEST_LINE), b""):
            for part in _parts(line):
                try:
                    found = strict_json.loads(part)
                    last[found["pid"], found["since"]] = _sound(found)
                except (ValueError, KeyError, TypeError):
                    broken += bool(part.strip())
    total: dict[str, Any] = {"skus": {}, "refusals": {}, "counts": {}}
    for counts in last.values():
        try:
            total = added(total, counts)
        except ValueError:  # latencies of a version that had other buckets
            broken += 1
    return total, broken


def _parts(line: bytes) -> tuple[bytes, ...]:
    """A line, or two where a process that was killed within its write left no end of a line before that of another process."""
    at = line.rfind(_HEAD)
    return (line[:at], line[at:]) if at > 0 else (line,)


def _sound(line: dict[str, Any]) -> dict[str, Any]:
    """The counts of a line; ValueError, KeyError or TypeError for anything else that a broken line may hold."""
    skus = {sku: _counted_of_sku(counted) for sku, counted in _mapping(line["skus"]).items()}
    return {"skus": skus, "refusals": _numbers(line["refusals"]), "counts": _numbers(line["counts"])}


def _counted_of_sku(counted: Any) -> dict[str, Any]:
    plain = {name: value for name, value in _mapping(counted).items() if name != "latency"}
    timed = counted.get("latency")
    return _numbers(plain) if timed is None else _numbers(plain) | {"latency": _sound_latency(_mapping(timed))}


def _sound_latency(timed: dict[str, Any]) -> dict[str, Any]:
    ends = timed.get("counts", [])
    if not isinstance(ends, list):
        raise ValueError("no counts")
    plain = {name: value for name, value in timed.items() if name != "counts"}  # `without` leaves out what is 0
    return _numbers(plain) | {"counts": [_number(value) for value in ends]}


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("no counts")
    return value


def _numbers(counts: object) -> dict[str, Any]:
    return {name: _number(value) for name, value in _mapping(counts).items()}


def _number(value: Any) -> Any:
    if type(value) not in (int, float) or not 0 <= value < _MOST_COUNTED:
        raise ValueError("no count")
    return value
