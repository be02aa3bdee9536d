"""Peer: another library that solves one of our problems on our tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opfacade.errors import UnsupportedError

Call = Callable[[], None]
Make = Callable[[Any, Any, Any], Call]


@dataclass(frozen=True, slots=True)
class Peer:
    """module: the module that must be installed. make: (descriptor, args, lengths) -> a call that writes the outputs; raises
    the error of `declined` if it cannot."""

    name: str
    module: str
    make: Make


def declined(why: str) -> UnsupportedError:
    """The error of a peer that does not support a problem or is not installed."""
    return UnsupportedError(why, code="OPF-B002", op="bench", stage="peer")
