"""Random noise for Gumbel-max sampling in torch: Philox4x32-10 words by logical position, as exponential variates in
float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS, _WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def _product(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Upper and lower word of a product of 32-bit words; the int64 product wraps but keeps all 64 bits."""
    whole = x * factor
    return whole >> 32 & _MASK, whole & _MASK


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words per counter and key; all are int64 tensors of 32-bit words, which broadcast."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        (high0, low0), (high2, low2) = _product(c0, _MULTIPLIERS[0]), _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _WEYL[0] & _MASK, k1 + _WEYL[1] & _MASK
    return c0, c1, c2, c3


def words(seed: Tensor, offset: Tensor, stream: int, vocab: int, first: int = 0) -> Tensor:
    """The words of `vocab` tokens from `first` on, int64 [rows, vocab]. seed, offset: int64 [rows]."""
    import torch

    groups = torch.arange(first // 4, (first + vocab + 3) // 4, dtype=torch.int64, device=seed.device)[None]
    (offset_low, offset_high), (seed_low, seed_high) = _halves(offset), _halves(seed)
    four = philox((groups, offset_low, offset_high, torch.full_like(groups, stream)), (seed_low, seed_high))
    return torch.stack([word.expand(len(seed), -1) for word in four], -1).flatten(1)[:, first % 4 : first % 4 + vocab]


def words_at(seed: Tensor, offset: Tensor, stream: int, tokens: Tensor) -> Tensor:
    """The words of the given tokens, int64 [rows, n]; tokens: int64 [rows, n]."""
    import torch

    (offset_low, offset_high), (seed_low, seed_high) = _halves(offset), _halves(seed)
    four = philox((tokens // 4, offset_low, offset_high, torch.full_like(tokens, stream)), (seed_low, seed_high))
    return torch.stack([word.expand(tokens.shape) for word in four]).gather(0, tokens[None] % 4)[0]


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper words, as columns."""
    return (x & _MASK)[:, None], (x >> 32 & _MASK)[:, None]


def minus_log2_exponential(word: Tensor) -> Tensor:
    """-log2 E in float64, with E = -ln(1 - (word + 1/2) / 2^32): finite for every word."""
    return -(-((word.double() + 0.5) * -(2.0**-32)).log1p()).log2()
