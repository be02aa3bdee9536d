"""A lock that is free in a forked child, even if a thread of the parent held it, because threads do not survive a fork.

In the child, the protected data may be partly changed. So use this lock only for data that is consistent between any two
statements, such as one number or one entry of a mapping.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from weakref import WeakSet

_all: WeakSet[ForkLock] = WeakSet()


class ForkLock:
    """`with lock:` as with `threading.Lock()`. A thread that forks while it holds the lock continues in both processes."""

    __slots__ = ("__weakref__", "_held", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = self._lock
        _all.add(self)

    def __enter__(self) -> None:
        lock = self._lock
        lock.acquire()
        self._held = lock  # the lock to release: a fork may replace self's lock meanwhile

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
