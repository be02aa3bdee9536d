"""Random numbers. Each element is a function of the key and its own position, independently of the grid and of other
elements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import DType
from opfacade.plans.elementwise import MapDescriptor
from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant
from opfacade.programs.types import FLOATS, Type
from opfacade.recipes._draft import Draft
from opfacade.recipes._folding import FoldDraft
from opfacade.recipes._noise import Key, Noise
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shape, Shaped, dtype_of, refuse, sizes
from opfacade.recipes.creation.positions import as_type, type_of
from opfacade.recipes.elementwise.casts import converted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opfacade.recipes._tensors import AnyDType, Scalar


KEYED = "also takes `stream`, and either `key` [seed, offset] or `seed` and `offset`; `input` is not an operand"
TORCH = f"{KEYED}; stream 0 matches torch's stateless generator"


def _drawn(shape: Shape, dtype: AnyDType | None, key: Key) -> tuple[Draft, Noise, DType]:
    draft, wanted = Draft(shape), dtype_of(dtype)
    return draft, Noise(draft, key), wanted


def _uniform(shape: Shape, low: Any, high: Scalar | None, dtype: AnyDType | None, key: Key) -> MapDescriptor:
    draft, noise, wanted = _drawn(shape, dtype, key)
    found = noise.uniform(wanted)
    if (low, high) != (0, 1):
        if not low <= high or math.isinf(high - low):
            refuse("high", f"a finite number, at least low ({low})", high)
        found = found * draft.number("size", high - low, found.type) + draft.number("low", low, found.type)
    return draft.map(found, dtype=wanted)


def _normal(shape: Shape, mean: Scalar, std: Scalar, dtype: AnyDType, key: Key) -> MapDescriptor:
    draft, noise, wanted = _drawn(shape, dtype, key)
    return draft.map(_bell(draft, noise, mean, std, wanted), dtype=wanted)


def _bell(draft: Draft, noise: Noise, mean: Scalar, std: Scalar, dtype: DType) -> Node:
    found = noise.normal(dtype)
    if std < 0:
        refuse("std", "0 or more", std)
    return (
        found
        if (mean, std) == (0, 1)
        else found * draft.number("std", std, found.type) + draft.number("mean", mean, found.type)
    )


@recipe("uniform", f"{TORCH}, with the same bits in [0, 1)")
def uniform(
    input: Shaped,
    low: float = 0.0,
    high: float = 1.0,
    key: Shaped | None = None,
    seed: int = 0,
    offset: int = 0,
    stream: int = 0,
) -> MapDescriptor:
    return _uniform(input.shape, low, high, input.dtype, Key(key, seed, offset, stream))


@recipe("rand_like", f"{TORCH}, with the same bits")
def rand_like(
    input: Shaped, dtype: AnyDType | None = None, key: Shaped | None = None, seed: int = 0, offset: int = 0, stream: int = 0
) -> MapDescriptor:
    return _uniform(input.shape, 0, 1, dtype or input.dtype, Key(key, seed, offset, stream))


@recipe("rand", f"{TORCH}, with the same bits")
def rand(
    size: int | Sequence[int],
    dtype: AnyDType = "f32",
    key: Shaped | None = None,
    seed: int = 0,
    offset: int = 0,
    stream: int = 0,
) -> MapDescriptor:
    return _uniform(sizes("size", size), 0, 1, dtype, Key(key, seed, offset, stream))


@recipe("normal", f"{TORCH}, up to the error bound")
def normal(
    input: Shaped,
    mean: float = 0.0,
    std: float = 1.0,
    key: Shaped | None = None,
    seed: int = 0,
    offset: int = 0,
    stream: int = 0,
) -> MapDescriptor:
    return _normal(input.shape, mean, std, input.dtype, Key(key, seed, offset, stream))


@recipe("randn_like", f"{TORCH}, up to the error bound")
def randn_like(
    input: Shaped, dtype: AnyDType | None = None, key: Shaped | None = None, seed: int = 0, offset: int = 0, stream: int = 0
) -> MapDescriptor:
    return _normal(input.shape, 0, 1, dtype or input.dtype, Key(key, seed, offset, stream))


@recipe("randn", f"{TORCH}, up to the error bound")
def randn(
    size: int | Sequence[int],
    dtype: AnyDType = "f32",
    key: Shaped | None = None,
    seed: int = 0,
    offset: int = 0,
    stream: int = 0,
) -> MapDescriptor:
    return _normal(sizes("size", size), 0, 1, dtype, Key(key, seed, offset, stream))


@recipe("log_normal", KEYED)
def log_normal(
    input: Shaped,
    mean: float = 1.0,
    std: float = 2.0,
    key: Shaped | None = None,
    seed: int = 0,
    offset: int = 0,
    stream: int = 0,
) -> MapDescriptor:
    draft, noise, wanted = _drawn(input.shape, input.dtype, Key(key, seed, offset, stream))
    return draft.map(w.exp(_bell(draft, noise, mean, std, wanted)), dtype=wanted)


@recipe("exponential_ ~exponential", f"{KEYED}; never 0")
def exponential_(
    input: Shaped, lambd: float = 1.0, key: Shaped | None = None, seed: int = 0, offset: int = 0, stream: int = 0
) -> MapDescriptor:
    draft, noise, wanted = _drawn(input.shape, input.dtype, Key(key, seed, offset, stream))
    found = noise.exponential(wanted)
    if not lambd > 0:
        refuse("lambd", "more than 0", lambd)
    return draft.map(found if lambd == 1 else found / draft.number("lambd", lambd, found.type), dtype=wanted)


@recipe("cauchy", KEYED)
def cauchy(
    input: Shaped,
    median: float = 0.0,
    sigma: float = 1.0,
    key: Shaped | None = None,
    seed: int = 0,
    offset: int = 0,
    stream: int = 0,
) -> MapDescriptor:
    """The tangent of a random angle in (-pi / 2, pi / 2), at least half a unit of 2^-24 from both ends."""
    draft, noise, wanted = _drawn(input.shape, input.dtype, Key(key, seed, offset, stream))
    if not sigma > 0:
        refuse("sigma", "more than 0", sigma)
    found = noise.uniform("f64" if wanted == "f64" else "f32")
    tan = w.tan(((found - 0.5) + (2.0**-54 if wanted == "f64" else 2.0**-25)) * math.pi)
    return draft.map(tan * draft.number("sigma", sigma, found.type) + draft.number("median", median, found.type), dtype=wanted)


@recipe("geometric", f"{KEYED}; accepts floats and integers")
def geometric(
    input: Shaped, p: float, key: Shaped | None = None, seed: int = 0, offset: int = 0, stream: int = 0
) -> MapDescriptor:
    """The number of trials up to and including the first success."""
    draft = Draft(input.shape)
    if not 0 < p < 1:
        refuse("p", "between 0 and 1", p)
    wide: DType = input.dtype if input.type in FLOATS else "f64"
    found = Noise(draft, Key(key, seed, offset, stream)).exponential(wide)
    count = w.maximum(w.ceil(found / draft.number("rate", -math.log1p(-p), found.type)), 1.0)
    return draft.map(converted(count, input.dtype), dtype=input.dtype)


@recipe(
    "bernoulli", "`key`, `seed`, `offset` and `stream` as in `uniform`; probabilities have a resolution of 2^-24 (f64: 2^-53)"
)
def bernoulli(input: Shaped, p: Any = None, key: Any = None, seed: int = 0, offset: int = 0, stream: int = 0) -> MapDescriptor:
    """1 if a uniform number is below the element (or below the number p), else 0."""
    draft = Draft(input.shape)
    if input.type not in FLOATS and p is None:
        refuse("input", "a float dtype, or a number p", input.dtype)
    if isinstance(p, (int, float)) and not 0 <= p <= 1:
        refuse("p", "a probability, 0 .. 1", p)
    wide: Type = "f64" if input.dtype == "f64" else "f32"
    chance = draft.element("input", input) if p is None else draft.number("p", p, wide)
    hit = w.lt(Noise(draft, Key(key, seed, offset, stream)).uniform(wide), chance)
    return draft.map(as_type(hit, type_of(input.dtype)[1]), dtype=input.dtype)


@recipe("randint", f"{KEYED}; each number uses 64 random bits")
def randint(
    low: int,
    high: Scalar | None,
    size: Any,
    dtype: AnyDType | None = "i64",
    key: Any = None,
    seed: int = 0,
    offset: int = 0,
    stream: int = 0,
) -> MapDescriptor:
    """Random integers in [low, high)."""
    return _integers(sizes("size", size), low, high, dtype, Key(key, seed, offset, stream))


@recipe("randint_like", f"{KEYED}; each number uses 64 random bits")
def randint_like(
    input: Shaped, low: int, high: Scalar | None = None, dtype: AnyDType | None = None, key: Any = None, seed: int = 0,
    offset: int = 0,
    stream: int = 0,
) -> MapDescriptor:  # fmt: skip
    """If high is None, the range is [0, low)."""
    first, last = (0, low) if high is None else (low, high)
    return _integers(input.shape, first, last, dtype or input.dtype, Key(key, seed, offset, stream))


def _integers(shape: Shape, low: Any, high: Any, dtype: Any, key: Key) -> MapDescriptor:
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in (low, high)) or not low < high:
        refuse("high", f"an integer above {low}", high)
    if low < -(2**63) or high > 2**63:
        refuse("low" if low < -(2**63) else "high", "64-bit integers", (low, high))
    draft, (wanted, type) = Draft(shape), type_of(dtype)
    found = w.i64(Noise(draft, key).below(draft, high - low)) + draft.number("low", low, "i64")
    return draft.map(as_type(found, type), dtype=wanted)


@recipe("multinomial", "several samples need replacement=True; weights need not be normalised, but must be below 2^90")
def multinomial(
    input: Shaped,
    num_samples: int,
    replacement: bool = False,
    key: Shaped | None = None,
    seed: int = 0,
    offset: int = 0,
    stream: int = 0,
) -> FoldDescriptor:
    """The class with the smallest quotient of an exponential random number and the weight of the class."""
    if input.rank not in (1, 2) or input.type not in FLOATS:
        refuse("input", "float weights with one or two axes", input)
    if num_samples < 1 or (num_samples > 1 and not replacement):
        refuse(
            "num_samples",
            "1, or more with replacement",
            num_samples,
            "For several samples without replacement, take the top k of weight / exponential.",
        )
    shape = (*input.shape[:-1], num_samples, input.shape[-1])
    draft = FoldDraft(shape, (len(shape) - 1,))
    weight = draft.along("input", input, tuple(axis for axis in range(len(shape)) if axis != len(shape) - 2))
    arrival = Noise(draft, Key(key, seed, offset, stream)).exponential("f64" if input.dtype == "f64" else "f32")
    speed = w.select(weight > 0.0, weight / arrival, constant(0.0, weight.type))
    return draft.rows(draft.join("argmax", speed, "index"))
