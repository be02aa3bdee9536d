"""A lock that is open in a forked child, also where a thread held it: threads do not survive a fork.

A child may find the data of such a lock half changed. So a lock of this kind protects only data that is sound between any two
statements: one number, or one entry of a mapping.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from weakref import WeakSet

_all: WeakSet[ForkLock] = WeakSet()


class ForkLock:
    """`with lock:` as with `threading.Lock()`. A thread that forks while it holds the lock goes on in both processes."""

    __slots__ = ("__weakref__", "_held", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = self._lock
        _all.add(self)

    def __enter__(self) -> None:
        lock = self._lock
        lock.acquire()
        self._held = lock  # the one to release, should a fork renew the other meanwhile

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._held.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def _renew(self) -> None:
        self._lock = threading.Lock()


def _after_fork() -> None:
    for lock in _all:
        lock._renew()


os.register_at_fork(after_in_child=_after_fork)
