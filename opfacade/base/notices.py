"""Warnings of this package. If stderr is closed, a warning is lost, but nothing fails."""

from __future__ import annotations

import warnings
from contextlib import suppress

from opfacade.errors import OpfacadeWarning

_told: dict[str, object] = {}


def warn(message: str, category: type[OpfacadeWarning], stacklevel: int = 2) -> None:
    """As `warnings.warn`, including filters that turn warnings into errors, but without errors from the stream."""
    # The warnings module handles only OSError; a stream that was closed in Python raises ValueError.
    with suppress(OSError, ValueError):
        warnings.warn(message, category, stacklevel + 1)


def tell(message: str, category: type[OpfacadeWarning]) -> None:
    """Warns without raising, even if a filter turns warnings into errors, because a warning must not fail a run."""
    with suppress(OpfacadeWarning):
        warn(message, category, 3)


def tell_once(name: str, message: str, category: type[OpfacadeWarning]) -> None:
    """Calls `tell` the first time that this process uses the name; later calls have no effect."""
    mark = object()
    if _told.setdefault(name, mark) is mark:  # atomic, so only one thread warns
        tell(message, category)
