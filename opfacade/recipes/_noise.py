"""Random numbers from the words of Philox4x32-10. Each element of a result has its own words, independently of kernel and
grid."""

from __future__ import annotations

from typing import Any, NamedTuple

from opfacade.core.dtypes import DType
from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant
from opfacade.programs.types import FLOATS, Type, storable
from opfacade.recipes._draft import Draft
from opfacade.recipes._tensors import Shaped, refuse
from opfacade.recipes.data_movement.indexing import raveled

DIGITS: dict[DType, int] = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}  # bits of a uniform number


class Key(NamedTuple):
    """The source of random words: the last arguments of every random recipe.

    key: a u64 tensor [seed, offset], which replaces the numbers `seed` and `offset`. stream: different streams give independent
    words.
    """

    key: Any = None
    seed: Any = 0
    offset: Any = 0
    stream: Any = 0


class Noise:
    """The random words of a draft. index: the u64 index of an element; None: its row-major index."""

    def __init__(self, draft: Draft, key: Key, index: Node | None = None) -> None:
        self._key = (*_seed(draft, key), draft.number("stream", _whole("stream", key.stream), "u64"))
        self.index = w.u64(raveled(len(draft.shape))) if index is None else index

    def word(self, place: Node) -> Node:
        """32 random bits: word `place % 4` of the counter `offset + place / 4`."""
        seed, offset, stream = self._key
        return w.bits(seed, offset, place, stream)

    def wide(self, place: Node) -> Node:
        """64 random bits: a word and the next word."""
        return w.or_(w.shl(w.u64(self.word(place)), 32), w.u64(self.word(w.or_(place, 1))))

    def uniform(self, dtype: DType) -> Node:
        """The low bits of one word (for f64: of two words) as a number in [0, 1), as in torch's stateless generator."""
        type, digits = _type_of(dtype)
        bits = self.wide(self.index * 2) if type == "f64" else self.word(self.index)
        return w.apply(type, w.and_(bits, 2**digits - 1)) * 2.0**-digits

    def exponential(self, dtype: DType) -> Node:
        """-log(u) for u in (0, 1). u has the same resolution near 1 as near 0, because it is computed from the nearer end."""
        type, _ = _type_of(dtype)
        size = 64 if type == "f64" else 32
        bits = self.wide(self.index * 2) if type == "f64" else self.word(self.index)
        low = w.lt(bits, 1 << (size - 1))
        near = w.apply(type, w.select(low, bits, w.not_(bits))) * 2.0**-size + 2.0 ** -(size + 1)
        return w.select(low, -w.log1p(-near), -w.log(near))

    def normal(self, dtype: DType) -> Node:
        """Box-Muller: neighbouring elements share a radius; one uses the cosine of the angle and the other the sine."""
        type, _ = _type_of(dtype)
        first = w.and_(self.index, 2**64 - 2)
        if type == "f64":
            size, turn = (self._fine(w.or_(first * 2, by)) for by in (0, 2))
        else:
            size, turn = (w.f32(self.word(w.or_(first, by))) * 2.0**-32 + 2.0**-33 for by in (0, 1))
        angle = turn * 6.283185307179586
        odd = w.ne(w.and_(self.index, 1), 0)
        return w.sqrt(-2.0 * w.log(size)) * w.select(odd, w.sin(angle), w.cos(angle))

    def _fine(self, place: Node) -> Node:
        """64 random bits as an f64 in (0, 1]."""
        low = w.f64(self.word(w.or_(place, 1))) * 2.0**-64 + 2.0**-65
        return w.f64(self.word(place)) * 2.0**-32 + low

    def below(self, draft: Draft, count: int) -> Node:
        """A u64 in [0, count). The relative error of each probability is at most count / 2^64."""
        size = draft.number("count", count, "u64")
        bits = self.wide(self.index * 2)
        if count > 2**32:
            return w.mod(bits, size)
        return w.shr(w.shr(bits, 32) * size + w.shr(w.and_(bits, 2**32 - 1) * size, 32), 32)


def _seed(draft: Draft, key: Key) -> tuple[Node, Node]:
    if key.key is None:
        seed, offset = _whole("seed", key.seed), _whole("offset", key.offset)
        return draft.number("seed", seed, "u64"), draft.number("offset", offset, "u64")
    if not isinstance(key.key, Shaped) or tuple(key.key) != ((2,), "u64"):
        refuse("key", "a u64 tensor [seed, offset], as torch.func._random.key returns it", key.key)
    source = draft.source("key", key.key)
    return source.at([constant(0, "i64")]), source.at([constant(1, "i64")])


def _whole(name: str, given: object) -> int:
    """An integer as its 64 bits; negative ones are converted as torch converts seeds."""
    if isinstance(given, bool) or not isinstance(given, int) or not -(2**63) <= given < 2**64:
        refuse(name, "a 64-bit integer", given)
    return int(given) % 2**64


def _type_of(dtype: DType) -> tuple[Type, int]:
    type = storable(dtype)
    if type not in FLOATS or dtype not in DIGITS:
        refuse("dtype", f"one of {', '.join(DIGITS)}", dtype)
    return type, DIGITS[dtype]
