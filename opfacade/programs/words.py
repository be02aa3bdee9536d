"""Functions for writing programs, one for each operation of the language. `opfacade.words` has them for variants too.

from opfacade.words import exp, value
x = value("x", "f32")
silu = x / (1 + exp(-x))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from opfacade.programs.expression import Node, apply, constant, coord, extent, read, scalar, stage, value
from opfacade.programs.operations import OPERATIONS

_WORDS = {name: f"{name}_" if name in ("and", "or", "not", "min", "max", "abs") else name for name in OPERATIONS}
# Names of operations in numpy and torch.
ALIASES = {
    "equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge",
    "where": "select",
}  # fmt: skip
OPERATION = {word: name for name, word in _WORDS.items()} | ALIASES  # by name of the function

__all__ = ["Node", "apply", "constant", "coord", "extent", "read", "round_to", "scalar", "square", "stage", "value"]
__all__ += sorted(OPERATION)


def _word(name: str) -> Callable[..., Node]:
    def call(*args: Node | float) -> Node:
        return apply(name, *args)

    call.__name__ = call.__qualname__ = _WORDS[name]
    call.__doc__ = f"The operation `{name}`: docs/programs.md has its meaning."
    return call


globals().update({word: _word(name) for word, name in OPERATION.items()})


if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., Node]: ...  # every function of the table


def round_to(x: Node, dtype: str) -> Node:
    """x rounded to f16, bf16, f8_e4m3 or f8_e5m2, or up to f8_e8m0, and widened again; no compiler removes this."""
    return apply(f"round_{dtype}", x)


def square(x: Node) -> Node:
    return apply("mul", x, x)
