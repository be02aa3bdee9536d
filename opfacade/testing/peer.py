"""Peer: another library that solves a problem of ours on our tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opfacade.errors import UnsupportedError

Call = Callable[[], None]
Make = Callable[[Any, Any, Any], Call]


@dataclass(frozen=True, slots=True)
class Peer:
    """module: what must be installed. make: (descriptor, args, lengths) to a call that writes the outputs, or raises what
    `declined` gives."""

    name: str
    module: str
    make: Make


def declined(why: str) -> UnsupportedError:
    """The error of a peer that does not take a problem, or is not installed."""
    return UnsupportedError(why, code="OPF-B002", op="bench", stage="peer")
