"""The work of a request: its rows, its keys, the keys before a window."""

from __future__ import annotations

from typing import Any


def requests_of(descriptor: Any, lengths: Any) -> list[tuple[int, int]]:
    """(rows, keys) of each request. lengths: an object with `q` and `kv`; without `q` each request has one row."""
    kv = lengths.kv or ()
    return list(zip(lengths.q if lengths.q is not None else [1] * len(kv), kv, strict=True))


def first_hidden(descriptor: Any, row: int, q: int, kv: int) -> int:
    """Keys before the window of a row."""
    return max(0, row + kv - q - descriptor.window_left) if descriptor.window_left >= 0 else 0
