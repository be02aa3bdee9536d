"""Tensors that depend only on the position of an element: constants, ranges, grids."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import DType
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, coord, extent
from opfacade.programs.types import FLOATS, Type, storable
from opfacade.recipes._draft import Draft
from opfacade.recipes._recipe import add, recipe
from opfacade.recipes._tensors import Shaped, dtype_of, refuse, sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opfacade.recipes._tensors import AnyDType, Scalar


def type_of(dtype: AnyDType | None) -> tuple[DType, Type]:
    """The name of a dtype, and the type of the values that a tensor of this dtype stores."""
    wanted = dtype_of(dtype)
    type = storable(wanted)
    if type is None:
        refuse("dtype", "a dtype that stores values by rounding to nearest", dtype)
    return wanted, type


def filled(shape: Any, value: Any, dtype: Any) -> MapDescriptor:
    draft, (wanted, type) = Draft(shape), type_of(dtype)
    return draft.map(draft.number("value", bool(value) if type == "bool" else value, type), dtype=wanted)


@recipe("full")
def full(size: int | Sequence[int], fill_value: Scalar, dtype: AnyDType = "f32") -> MapDescriptor:
    return filled(sizes("size", size), fill_value, dtype)


@recipe("full_like")
def full_like(input: Shaped, fill_value: Any, dtype: AnyDType | None = None) -> MapDescriptor:
    """The input is not an operand, because only its shape and dtype are used."""
    return filled(input.shape, fill_value, input.dtype if dtype is None else dtype)


@recipe("new_full")
def new_full(input: Shaped, size: Any, fill_value: Any, dtype: AnyDType | None = None) -> MapDescriptor:
    return filled(sizes("size", size), fill_value, input.dtype if dtype is None else dtype)


def _one_value(value: int, word: str) -> None:
    def plain(size: int | Sequence[int], dtype: AnyDType = "f32") -> MapDescriptor:
        return filled(sizes("size", size), value, dtype)

    def like(input: Shaped, dtype: AnyDType | None = None) -> MapDescriptor:
        return filled(input.shape, value, input.dtype if dtype is None else dtype)

    def new(input: Shaped, size: int | Sequence[int], dtype: AnyDType | None = None) -> MapDescriptor:
        return filled(sizes("size", size), value, input.dtype if dtype is None else dtype)

    for name, make in ((word, plain), (f"{word}_like", like), (f"new_{word}", new)):
        add(name, make)


_one_value(0, "zeros")
_one_value(1, "ones")
add("fill", lambda input, value: filled(input.shape, value, input.dtype))
add("zero_", lambda input: filled(input.shape, 0, input.dtype))
add("scalar_tensor", lambda s, dtype="f32": filled((), s, dtype))


@recipe("arange", "exact for integers; for floats start + i * step, rounded twice")
def arange(start: Any, end: Any = None, step: Any = 1, dtype: AnyDType | None = None) -> MapDescriptor:
    """With a single number, it is the end of the range."""
    first, last = (0, start) if end is None else (start, end)
    whole = all(isinstance(one, int) for one in (first, last, step))
    wanted, type = type_of(dtype or ("i64" if whole else "f32"))
    if not whole and type not in FLOATS:
        refuse("end", "integers for an integer dtype", (first, last, step))
    if not step or (last - first) / step < 0:
        refuse("step", "a step toward end", step)
    draft = Draft((math.ceil((last - first) / step),))
    inner: Type = type if type in FLOATS else "i64"
    found = draft.number("start", first, inner) + as_type(coord(0), inner) * draft.number("step", step, inner)
    return draft.map(as_type(found, type), dtype=wanted)


def as_type(node: Node, type: Type) -> Node:
    found: Node = node if node.type == type else getattr(w, "bool" if type == "bool" else type)(node)
    return found


@recipe("linspace", "floats")
def linspace(start: float, end: float, steps: int, dtype: AnyDType = "f32") -> MapDescriptor:
    """Computed from the nearer end, so both ends are exact."""
    draft, (wanted, type) = Draft((steps,)), type_of(dtype)
    return draft.map(_spaced(draft, start, end, steps, type), dtype=wanted)


def _spaced(draft: Draft, start: float, end: float, steps: int, type: Type) -> Node:
    if type not in FLOATS or steps < 0:
        refuse("dtype" if type not in FLOATS else "steps", "a float dtype, and a number of steps", (type, steps))
    first, last = draft.number("start", start, type), draft.number("end", end, type)
    step = (last - first) / as_type(w.max_(extent(0) - 1, 1), type)
    at, back = as_type(coord(0), type), as_type(extent(0) - 1 - coord(0), type)
    return w.select(coord(0) < w.floordiv(extent(0), 2), first + at * step, last - back * step) if steps > 1 else first


@recipe("logspace", "floats")
def logspace(start: float, end: float, steps: int, base: float = 10.0, dtype: AnyDType = "f32") -> MapDescriptor:
    draft, (wanted, type) = Draft((steps,)), type_of(dtype)
    power = _spaced(draft, start, end, steps, type)
    return draft.map(w.pow(draft.number("base", base, type), power), dtype=wanted)
