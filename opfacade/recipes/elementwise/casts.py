"""Casts. A float becomes an integer by truncation toward zero and saturation, and NaN becomes 0; an integer wraps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import DType
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, apply
from opfacade.programs.types import storable
from opfacade.recipes._draft import Draft
from opfacade.recipes._recipe import add, recipe
from opfacade.recipes._tensors import Shaped, broadcast, dtype_of, refuse

if TYPE_CHECKING:
    from opfacade.recipes._tensors import AnyDType


METHODS: dict[str, DType] = {
    "bfloat16": "bf16", "half": "f16", "float": "f32", "double": "f64", "byte": "u8", "char": "i8", "short": "i16",
    "int": "i32", "long": "i64", "bool": "bool",
}  # fmt: skip
SATURATES = "a float outside the range of the integer type saturates; NaN becomes 0"


def converted(node: Node, dtype: DType) -> Node:
    """The value converted to the type in which a tensor of this dtype is stored."""
    wanted = storable(dtype)
    if wanted is None:
        refuse("dtype", "a dtype that stores values by rounding to nearest", dtype)
    return node if node.type == wanted else apply(wanted, node)


@recipe("to type", SATURATES)
def to(input: Shaped, dtype: AnyDType) -> MapDescriptor:
    """dtype: a name such as "bf16", or a torch dtype."""
    draft, wanted = Draft(input.shape), dtype_of(dtype)
    return draft.map(converted(draft.element("input", input), wanted), dtype=wanted)


def _method(dtype: DType) -> Callable[[Shaped], MapDescriptor]:
    return lambda input: to.make(input, dtype)


for _name, _dtype in METHODS.items():
    add(_name, _method(_dtype), SATURATES)


@recipe("float_power")
def float_power(input: Any, exponent: Any) -> MapDescriptor:
    """Computed in f64 for all arguments."""
    given = {"input": input, "exponent": exponent}
    draft = Draft(broadcast(one.shape for one in given.values() if isinstance(one, Shaped)))
    a, b = (
        converted(draft.element(name, one), "f64") if isinstance(one, Shaped) else draft.number(name, one, "f64")
        for name, one in given.items()
    )
    return draft.map(w.pow(a, b), dtype="f64")
