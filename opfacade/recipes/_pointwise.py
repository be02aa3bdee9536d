"""Elementwise recipes: tensors and numbers become expressions for a function, and each value that it returns is a result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import DType
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs.expression import Node, apply
from opfacade.programs.types import FLOATS, Type, widened
from opfacade.recipes._draft import Draft
from opfacade.recipes._tensors import Shaped, broadcast, refuse

if TYPE_CHECKING:
    from opfacade.core.descriptor import Args


TRUTHS = ("condition", "mask", "input_mask", "other_mask")  # bool tensors may be combined with tensors of any dtype
CHOICES = ("decimals", "p", "n")  # numbers that select the program
HINT = 'Convert with recipes.to(x, "f32"): nothing is promoted.'


def pointwise(function: Callable[..., Any]) -> Callable[..., MapDescriptor]:
    """A function that creates the descriptor. Number arguments are stored in the plan; None, bools and strings are passed to
    the function."""
    signature = inspect.signature(function)

    def make(*args: Args, **options: object) -> MapDescriptor:
        given = signature.bind(*args, **options).arguments
        tensors = {name: one for name, one in given.items() if isinstance(one, Shaped)}
        if not tensors:
            refuse(next(iter(signature.parameters)), "a tensor, or a Shaped with its shape and dtype", "none")
        dtype = common(tensors)
        draft = Draft(broadcast(one.shape for one in tensors.values()))
        made = function(**as_nodes(draft, given, dtype))
        values = made if isinstance(made, tuple) else (made,)
        return draft.map(*values, dtype=dtype)

    make.__signature__ = signature  # type: ignore[attr-defined]
    return make


def as_nodes(draft: Draft, given: Mapping[str, Any], dtype: DType) -> dict[str, Any]:
    """The arguments as expressions: tensors become inputs, and numbers become scalars of the plan."""
    return {name: _as_node(draft, name, one, widened(dtype)) for name, one in given.items()}


def common(tensors: Mapping[str, Shaped]) -> DType:
    """The common dtype of some tensors; f32 if all of them are bool conditions."""
    name, first = next(((name, one) for name, one in tensors.items() if name not in TRUTHS), ("", None))
    for other, one in tensors.items():
        if other in TRUTHS and one.dtype != "bool":
            refuse(other, "bool", one.dtype, "Compare with zero: recipes.ne(x, 0).")
        if first is not None and other not in TRUTHS and one.dtype != first.dtype:
            refuse(other, f"{first.dtype}, the dtype of {name}", one.dtype, HINT)
    return FLOATS[0] if first is None else first.dtype


def _as_node(draft: Draft, name: str, given: object, type: Type) -> Any:
    if isinstance(given, Shaped):
        return draft.element(name, given)
    if name not in CHOICES and isinstance(given, (int, float)) and (type == "bool" or not isinstance(given, bool)):
        return draft.number(name, given, type)
    return given


def unary(function: Callable[[Node], Node]) -> Callable[..., MapDescriptor]:
    return pointwise(lambda input: function(input))


def binary(function: Callable[[Node, Node], Node]) -> Callable[..., MapDescriptor]:
    return pointwise(lambda input, other: function(input, other))


def floats(node: Node) -> Node:
    """Returns a float unchanged; refuses any other type with the argument's name."""
    if node.type not in FLOATS:
        refuse("input", "a float dtype", node.type, HINT)
    return node


def truth(node: Node) -> Node:
    """Converts a value to a bool: true if it is not 0."""
    return node if node.type == "bool" else apply("bool", node)


def is_float(node: Node) -> bool:
    return node.type in FLOATS
