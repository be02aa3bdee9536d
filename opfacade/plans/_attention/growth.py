"""Bounds for attention whose number of keys grows from step to step. The bounds select the kernel, so they stay constant:
another kernel would have to be built in the middle of a generation, or would be refused if builds are not allowed."""

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
    """kv_split for rows at the end of kv_len contiguous keys, for which only the number of keys is a bound.

    units: requests times KV heads. With many units, "auto" does not split; with many rows, it depends only on the rows.
    Otherwise "auto" would start to split, with another kernel, as the keys grow; chunks of a fixed length keep one kernel.
    """
    if units >= _MANY or rows >= _MANY or kv_len > FIRST * _TIMES:
        return "auto"
    return _LEAST_CHUNK * max(1, -(-kv_len // (_MOST_SPLITS * _LEAST_CHUNK)))
