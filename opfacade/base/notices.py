"""Warnings of this package. Where they cannot be printed, on a stderr that is closed, they are lost and nothing fails."""

from __future__ import annotations

import warnings
from contextlib import suppress

from opfacade.errors import OpfacadeWarning

_told: dict[str, object] = {}


def warn(message: str, category: type[OpfacadeWarning], stacklevel: int = 2) -> None:
    """As `warnings.warn`, also a filter that makes errors of warnings; but no error because of the stream."""
    # warnings itself takes only OSError; a stream that was closed in Python answers with ValueError.
    with suppress(OSError, ValueError):
        warnings.warn(message, category, stacklevel + 1)


def tell(message: str, category: type[OpfacadeWarning]) -> None:
    """Warn without raising, also if a filter turns warnings into errors, because no run may fail for a notice."""
    with suppress(OpfacadeWarning):
        warn(message, category, 3)


def tell_once(name: str, message: str, category: type[OpfacadeWarning]) -> None:
    """The first `tell` under a name in this process; later ones are silent."""
    mark = object()
    if _told.setdefault(name, mark) is mark:  # one step, so of many threads one tells
        tell(message, category)
