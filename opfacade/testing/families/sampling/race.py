"""Random keys in numpy, implemented independently of the reference; every drawn token is checked against them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox(counter: Any, key: Any) -> Any:
    """Philox4x32-10 of uint64 arrays that hold 32-bit words: counter [4, ...], key [2, ...]."""
    x, k = [np.asarray(word, np.uint64) for word in counter], [np.asarray(word, np.uint64) for word in key]
    for _ in range(10):
        first, third = x[0] * np.uint64(0xD2511F53), x[2] * np.uint64(0xCD9E8D57)
        x = [third >> _SHIFT ^ x[1] ^ k[0], third & _LOW, first >> _SHIFT ^ x[3] ^ k[1], first & _LOW]
        k = [k[0] + np.uint64(0x9E3779B9) & _LOW, k[1] + np.uint64(0xBB67AE85) & _LOW]
    return np.stack(np.broadcast_arrays(*x))


def words(seed: int, offset: int, stream: int, vocab: int) -> Any:
    """The word of each token, uint64 [vocab]."""
    seed, offset = seed % 2**64, offset % 2**64
    groups = np.arange((vocab + 3) // 4, dtype=np.uint64)
    found = philox((groups, offset % 2**32, offset >> 32, stream), (seed % 2**32, seed >> 32))
    return found.T.reshape(-1)[:vocab]


def minus_log2_exponential(word: Array) -> Any:
    """-log2 E of each word, E = -ln(1 - (word + 1/2) 2^-32)."""
    return -np.log2(-np.log1p(-(word.astype(np.float64) + 0.5) * 2.0**-32))
