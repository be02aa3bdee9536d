"""Counters as JSON lines in a file that any number of processes share: a thread appends the current counts.

A run itself neither writes nor waits. Each line contains all counts since the start of its process, so no count is lost if a
line fails on a full disk: the next line contains it. A line is appended by one system call, so lines from processes of one host
do not mix. On NFS, each host needs a separate file.
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
_HEAD = b'{"pid": '  # the beginning of each line, which no value inside a line contains
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
        except RuntimeError as error:  # no thread is available: counts are written when the process ends
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
        """Appends one line if a counter has changed since the last line. Returns False on failure, which is counted; the first
        failure gives a warning. A FIFO without a reader is a failure, because a write never waits."""
        with self._writing:  # keeps lines in order of time, because readers use the last line of a process
            return self._write()

    def _write(self) -> bool:
        if telemetry.resets() != self._resets:  # after a reset, the counters no longer include the parent's counts
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
    """All counters of this process, in the form of a line."""
    return {"skus": telemetry.snapshot(), "refusals": telemetry.refusals(), "counts": telemetry.counts()}


def without(now: Any, before: Any) -> Any:
    """`now` minus `before`, number by number; unchanged entries of mappings are omitted."""
    if isinstance(now, Mapping):
        less = {name: without(value, (before or {}).get(name)) for name, value in now.items()}
        return {name: value for name, value in less.items() if value or name in ("skus", "refusals", "counts")}
    if isinstance(now, list):
        return [without(a, b) for a, b in zip(now, before or [0] * len(now), strict=True)]
    return now - (before or 0)


def added(one: Any, other: Any) -> Any:
    """The sum of two counts, or of two mappings or lists of counts; None counts as 0."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, Mapping):
        return {name: added(one.get(name), other.get(name)) for name in {**one, **other}}
    if isinstance(one, list):
        return [added(a, b) for a, b in zip(one, other, strict=True)]
    return one + other


def start() -> None:
    """Starts the writer if OPFACADE_TELEMETRY_FILE is set and no writer runs yet."""
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
    """Starts a new writer in a forked child, because threads do not survive a fork."""
    global _writer
    path = env.telemetry_file()
    if _writer is not None and path is not None:
        # A child's counters begin with its parent's counts, which the parent itself reports.
        _writer = Writer(path, before=counted())


atexit.register(_stop)
os.register_at_fork(after_in_child=_after_fork)


def read(path: Path) -> tuple[dict[str, Any], int]:
    """The sum of the counts of all processes in a regular file, and the number of damaged lines."""
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
        except ValueError:  # latency histograms of a version with other buckets
            broken += 1
    return total, broken


def _parts(line: bytes) -> tuple[bytes, ...]:
    """The line, split in two if it begins with the remains of a line from a process that was killed while writing."""
    at = line.rfind(_HEAD)
    return (line[:at], line[at:]) if at > 0 else (line,)


def _sound(line: dict[str, Any]) -> dict[str, Any]:
    """The counts of a line; ValueError, KeyError or TypeError if the line is damaged."""
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
    plain = {name: value for name, value in timed.items() if name != "counts"}  # `without` omits counts of 0
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
