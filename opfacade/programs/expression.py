"""The leaves of an expression, and the order of its parts. `programs.words` has a word for each operation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from opfacade.programs.fault import Fault
from opfacade.programs.node import CONVERT, SPECIAL, Kind, Node, apply, constant, make
from opfacade.programs.types import FLOATS, TYPES, Type

__all__ = ["Node", "apply", "constant", "coord", "extent", "leaf", "ordered", "read", "scalar", "stage", "value"]

Outside = Literal["clamp", "wrap", "reflect"]
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
MAX_AXES = 8
PARTS = ("value", "index", "mean", "m2", "max", "sum")  # types of stage results


def _named(kind: Kind, name: str, type: Type, exact: bool = True) -> Node:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Fault(".name", "a letter, followed by letters, digits and _, at most 32 characters", name)
    if type not in TYPES:
        raise Fault(".type", f"one of {', '.join(TYPES)}", type)
    return make(kind, "", (), name, type, exact)


def value(name: str, type: Type) -> Node:
    """The element of an input at the position of the result, widened to `type`."""
    return _named("input", name, type)


def leaf(name: str, type: Type, exact: bool) -> Node:
    """A value that the caller supplies under a name, which may be any text. `exact`: whether it has no error."""
    return make("input", "", (), name, type, exact)


def scalar(name: str, type: Type = "f32") -> Node:
    """A number of the plan, not part of a kernel's identity."""
    return _named("scalar", name, type)


def coord(axis: int) -> Node:
    """The index of the result along an axis, from 0: i64."""
    return make("coord", "", (), _axis(axis), "i64", True)


def extent(axis: int) -> Node:
    """The size of an axis: i64."""
    return make("extent", "", (), _axis(axis), "i64", True)


def stage(index: int, type: Type, part: str = "value") -> Node:
    """A result of an earlier stage of a fold.

    part: the name of the result, for reducers with several. Whether a float has an error depends on the stage;
    `programs.stages.resolved` sets this once the stages are known.
    """
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < MAX_AXES:
        raise Fault(".index", f"a stage, 0 .. {MAX_AXES - 1}", index)
    if part not in PARTS:
        raise Fault(".part", f"one of {', '.join(PARTS)}", part)
    if type not in TYPES:
        raise Fault(".type", f"one of {', '.join(TYPES)}", type)
    return make("stage", "", (), (index, part), type, type not in FLOATS)


def _axis(axis: object) -> int:
    if not isinstance(axis, int) or isinstance(axis, bool) or not 0 <= axis < MAX_AXES:
        raise Fault(".axis", f"an axis, 0 .. {MAX_AXES - 1}", axis)
    return axis


def read(name: str, type: Type, at: Iterable[Node | int], outside: Outside | Node | float = "clamp") -> Node:
    """The element of an input at a computed position, given as one i64 per axis.

    outside: how an index out of range is treated: "clamp": nearest index; "wrap": modulo the size; "reflect": mirrored at the
    first and last index; a value of the input's type: this value is the result. Every index of an empty input is out of range:
    the result is this value, or 0 if there is none. Raises Fault.
    """
    if not isinstance(at, Iterable):
        raise Fault(".at", f"a list of 1 to {MAX_AXES} indices", at)
    places = tuple(arg if isinstance(arg, Node) else constant(arg, "i64") for arg in at)
    if not 1 <= len(places) <= MAX_AXES:
        raise Fault(".at", f"1 to {MAX_AXES} places", len(places))
    for axis, place in enumerate(places):
        if place.type != "i64":
            raise Fault(f".at.{axis}", "an index of type i64", place.type, CONVERT)
        if not place.exact:
            raise Fault(f".at.{axis}", "an index without rounding errors", "an index that depends on rounded values")
    if isinstance(outside, str) and outside in ("clamp", "wrap", "reflect"):
        return make("read", "", places, (_named("input", name, type).data, outside), type, True)
    filled = outside if isinstance(outside, Node) else _fill(outside, type)
    if filled.type != type:
        raise Fault(".outside", f"a value of type {type}", filled.type, CONVERT)
    return make("read", "", (*places, filled), (_named("input", name, type).data, "fill"), type, filled.exact)


def _fill(outside: float | str, type: Type) -> Node:
    """The value for an index out of range; a text is a float that JSON cannot represent, such as inf."""
    if type in TYPES and isinstance(outside, str) and not (type in FLOATS and outside in SPECIAL):
        raise Fault(".outside", f"clamp, wrap, reflect or a value of type {type}", outside)
    try:
        return constant(outside, type)
    except Fault as fault:
        raise fault if fault.path != ".value" else Fault(".outside", fault.expected, fault.got, fault.hint_text) from None


def ordered(roots: Iterable[Node]) -> list[Node]:
    """Each node of a graph once, after its arguments, in order of first use."""
    seen: set[Node] = set()
    found: list[Node] = []
    stack = [(root, 0) for root in roots][::-1]
    while stack:
        node, at = stack.pop()
        if node in seen:
            continue
        if at < len(node.args):
            stack += [(node, at + 1), (node.args[at], 0)]
        else:
            seen.add(node)
            found.append(node)
    return found
