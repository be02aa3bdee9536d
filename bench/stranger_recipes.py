"""Random recipes over shapes with extents of 0, 1 and odd numbers, and with inputs that are expanded, transposed or read at
computed positions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from opfacade import recipes
from opfacade.recipes import Shaped

_DTYPES = ("f32", "bf16", "f16", "f64")
_EXTENTS = (0, 1, 1, 2, 3, 5, 7, 8, 16, 17, 31, 33, 64, 65)
_ONE = (
    "abs",
    "gelu",
    "silu",
    "lgamma",
    "tanh",
    "sinc",
    "mish",
    "softplus",
    "logit",
    "entr",
    "ndtr",
    "frac",
    "clone",
    "mvlgamma",
)
_TWO = ("add", "mul", "div", "atan2", "hypot", "xlogy", "logaddexp", "maximum", "copysign", "fmod", "remainder", "pow")
_MOVES = ("permute", "flip", "roll", "cat", "stack", "outer", "transpose", "repeat", "tril", "glu")
_FOLDS = (
    "sum",
    "mean",
    "amax",
    "logsumexp",
    "softmax",
    "log_softmax",
    "var",
    "argmax",
    "prod",
    "norm",
    "layer_norm",
    "normalize",
)


@dataclass(frozen=True)
class Call:
    """A recipe and its arguments, with shapes for tensors."""

    name: str
    arguments: tuple[Any, ...]
    descriptor: Any


def draw(rng: random.Random) -> Call:
    """A call, or one of the errors by which a recipe refuses a shape (DescriptorError)."""
    name = rng.choice((*_ONE, *_TWO, *_TWO, *_MOVES, *_FOLDS))
    x = Shaped(_shape(rng), rng.choice(_DTYPES))
    arguments = _arguments(name, x, rng)
    return Call(name, arguments, getattr(recipes, name)(*arguments))


def _shape(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.choice(_EXTENTS) for _ in range(rng.randint(1, 4)))


def _arguments(name: str, x: Shaped, rng: random.Random) -> tuple[Any, ...]:
    axis = rng.randrange(len(x.shape))
    if name in _TWO:
        return x, _beside(x, rng)
    if name in _FOLDS:
        return x, (x.shape[-1],) if name == "layer_norm" else axis if name != "normalize" else 2.0
    axes = rng.sample(range(len(x.shape)), len(x.shape))
    found = {
        "permute": (x, tuple(axes)), "flip": (x, tuple(axes[:2])), "roll": (x, rng.randint(-9, 9), axis),
        "cat": ([x] * rng.randint(1, 3), axis), "stack": ([x] * rng.randint(1, 3), axis), "transpose": (x, axis, axes[0]),
        "outer": (Shaped(x.shape[:1], x.dtype), Shaped(x.shape[-1:], x.dtype)), "glu": (x, axis), "mvlgamma": (x, 3),
        "repeat": (x, tuple(rng.randint(0, 3) for _ in x.shape)),
    }  # fmt: skip
    return found.get(name, (x,))


def _beside(x: Shaped, rng: random.Random) -> Any:
    """A second argument: a tensor that expands to the first (equal shape, some extents of 1, or without the first axes), or a
    number."""
    if rng.random() < 0.1:
        return 1.5
    extents = [1 if rng.random() < 0.35 else extent for extent in x.shape]
    return Shaped(tuple(extents[rng.choice((0, 0, 0, 1)) :]), x.dtype)
