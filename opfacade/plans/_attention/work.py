"""The work of a request: its rows, its keys, and the keys before a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from opfacade.core.descriptor import Descriptor


class Lengths(Protocol):
    """Rows and keys of each request."""

    @property
    def q(self) -> Sequence[int] | None: ...
    @property
    def kv(self) -> Sequence[int] | None: ...


class Windowed(Protocol):
    @property
    def window_left(self) -> int: ...


def rows_each(descriptor: Descriptor[Any]) -> int:
    """Rows of each request for an op without q_indptr: `q_len` if the descriptor has it, otherwise one."""
    return int(getattr(descriptor, "q_len", 1))


def requests_of(descriptor: Descriptor[Any], lengths: Lengths) -> list[tuple[int, int]]:
    """(rows, keys) of each request. lengths: an object with `q` and `kv`; without `q`, all requests have the same number of
    rows."""
    kv = lengths.kv or ()
    return list(zip(lengths.q if lengths.q is not None else [rows_each(descriptor)] * len(kv), kv, strict=True))


def first_hidden(descriptor: Windowed, row: int, q: int, kv: int) -> int:
    """Keys before the window of a row."""
    return max(0, row + kv - q - descriptor.window_left) if descriptor.window_left >= 0 else 0
