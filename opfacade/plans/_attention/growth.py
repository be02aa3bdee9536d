"""Bounds for attention whose number of keys grows from step to step. The bounds stay constant, because they select the kernel:
another kernel in the middle of a generation would be built then, or refused if builds are not allowed."""

from __future__ import annotations

from typing import Literal

from opfacade.core.model import INT32_MAX

FIRST = 8192  # tokens of a request
_TIMES = 4
_MOST_SPLITS = 32
_LEAST_CHUNK = 256
_MANY = 512  # more than a GPU has SMs


def longest(kv_len: int) -> int:
    """The bound for a request that has kv_len tokens now: 8192, and four times as much whenever it is exceeded."""
    bound = FIRST
    while bound < kv_len:
        bound *= _TIMES
    return min(bound, INT32_MAX)


def bounds_of(batch: int, kv_len: int, page_size: int) -> dict[str, int]:
    """max_kv_len and max_kv_indices for requests that have at most kv_len tokens now, in pages of page_size tokens."""
    most = longest(kv_len)
    return {"max_kv_len": most, "max_kv_indices": min(batch * -(-most // page_size), INT32_MAX // page_size)}


def ragged_split(units: int, rows: int, kv_len: int) -> int | Literal["auto"]:
    """kv_split of rows at the end of kv_len keys that are plain rows, which have no bound but their number.

    units: requests times KV heads. "auto" does not split if they are many, and depends on the rows alone where those
    are. Elsewhere it begins to split when the keys have grown, which is another kernel; chunks of a fixed length are one.
    """
    if units >= _MANY or rows >= _MANY or kv_len > FIRST * _TIMES:
        return "auto"
    return _LEAST_CHUNK * max(1, -(-kv_len // (_MOST_SPLITS * _LEAST_CHUNK)))
