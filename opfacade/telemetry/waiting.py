"""Events of a thread that are delayed until a block ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_here = threading.local()


def holds(event: dict[str, Any]) -> bool:
    """Keeps the event if this thread is within a block."""
    waiting: list[dict[str, Any]] | None = getattr(_here, "waiting", None)
    if waiting is not None:
        waiting.append(event)
    return waiting is not None


@contextmanager
def until_the_end(tell: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Delays events until the outermost block of this thread ends, also if it ends with an error."""
    if getattr(_here, "waiting", None) is not None:
        yield
        return
    waiting: list[dict[str, Any]] = []
    _here.waiting = waiting
    try:
        yield
    finally:
        _here.waiting = None
        for event in waiting:
            tell(event)
