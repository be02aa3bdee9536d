"""Node: a typed expression as data, a graph whose equal subexpressions are the same object.

Equal contents give the same node, so equality is identity, a shared subexpression is computed once, and nothing is validated
again. Python's operators build larger nodes; a number operand becomes a constant of the other operand's type. Types are not
promoted.
"""

from __future__ import annotations

import math
import os
import struct
import threading
from typing import Any, Literal, NoReturn
from weakref import WeakValueDictionary

from opfacade.programs.fault import Fault
from opfacade.programs.operations import OPERATIONS
from opfacade.programs.types import FLOATS, TYPES, Type, range_of

Kind = Literal["constant", "input", "scalar", "coord", "extent", "stage", "read", "apply"]
SPECIAL = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan, "-0": -0.0}  # f32 and f64 values without a JSON number
CONVERT = "Convert with the operation that has the name of the type, such as f32(x)."


class Node:
    """kind; op: the operation of an apply.

    args: nodes. data: the value, name or axis of a leaf. type: the computation type. exact: whether the bits are the same on
    every machine. depth: of the tree; 1 for a leaf.
    """

    __slots__ = ("__weakref__", "args", "data", "depth", "exact", "kind", "op", "type")
    kind: Kind
    op: str
    args: tuple[Node, ...]
    data: Any
    type: Type
    exact: bool
    depth: int

    def __init__(self) -> None:
        raise TypeError("nodes are created by the functions of opfacade.programs.expression")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a node is immutable")

    def __copy__(self) -> Node:
        return self

    def __deepcopy__(self, memo: object) -> Node:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return make, (self.kind, self.op, self.args, self.data, self.type, self.exact)

    def __repr__(self) -> str:
        told = [repr(arg) if arg.depth < 4 else f"<{arg.op or arg.kind}>" for arg in self.args]
        return f"{self.op or self.kind}({', '.join([*told, *([] if self.data is None else [str(self.data)])])})"

    def __bool__(self) -> NoReturn:
        raise TypeError("an expression has no truth value: use select, &, | and ~, and one comparison at a time")

    def __add__(self, other: Node | float) -> Node:
        return apply("add", self, other)

    def __radd__(self, other: float) -> Node:
        return apply("add", other, self)

    def __sub__(self, other: Node | float) -> Node:
        return apply("sub", self, other)

    def __rsub__(self, other: float) -> Node:
        return apply("sub", other, self)

    def __mul__(self, other: Node | float) -> Node:
        return apply("mul", self, other)

    def __rmul__(self, other: float) -> Node:
        return apply("mul", other, self)

    def __truediv__(self, other: Node | float) -> Node:
        return apply("div", self, other)

    def __rtruediv__(self, other: float) -> Node:
        return apply("div", other, self)

    def __floordiv__(self, other: Node | int) -> Node:
        return apply("floordiv", self, other)

    def __rfloordiv__(self, other: int) -> Node:
        return apply("floordiv", other, self)

    def __mod__(self, other: Node | float) -> Node:
        return apply("mod", self, other)

    def __rmod__(self, other: float) -> Node:
        return apply("mod", other, self)

    def __neg__(self) -> Node:
        return apply("neg", self)

    def __abs__(self) -> Node:
        return apply("abs", self)

    def __lt__(self, other: Node | float) -> Node:
        return apply("lt", self, other)

    def __le__(self, other: Node | float) -> Node:
        return apply("le", self, other)

    def __gt__(self, other: Node | float) -> Node:
        return apply("gt", self, other)

    def __ge__(self, other: Node | float) -> Node:
        return apply("ge", self, other)

    def __and__(self, other: Node | int) -> Node:
        return apply("and", self, other)

    def __or__(self, other: Node | int) -> Node:
        return apply("or", self, other)

    def __xor__(self, other: Node | int) -> Node:
        return apply("xor", self, other)

    def __lshift__(self, other: Node | int) -> Node:
        return apply("shl", self, other)

    def __rshift__(self, other: Node | int) -> Node:
        return apply("shr", self, other)

    def __invert__(self) -> Node:
        return apply("not", self)


_KNOWN: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()
_LOCK = threading.Lock()


def _after_fork() -> None:
    """A new lock in a forked child, because another thread may have held the old one. A ForkLock would be too slow: this lock
    is taken for each node of a program."""
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def make(kind: Kind, op: str, args: tuple[Node, ...], data: object, type: Type, exact: bool) -> Node:
    key = (kind, op, args, data, type, exact)
    with _LOCK:
        found = _KNOWN.get(key)
        if found is None:
            found = object.__new__(Node)
            depth = 1 + max((arg.depth for arg in args), default=0)
            for name, value in zip(("kind", "op", "args", "data", "type", "exact"), key, strict=True):
                object.__setattr__(found, name, value)
            object.__setattr__(found, "depth", depth)
            _KNOWN[key] = found
        return found


def constant(value: float | str, type: Type) -> Node:
    """A number of a type: an f32 is rounded to the nearest, an integer is in range. "inf", "-inf", "nan" and "-0" are floats.

    A zero without a sign in its text is +0. Raises Fault.
    """
    if type not in TYPES:
        raise Fault(".type", f"one of {', '.join(TYPES)}", type)
    return make("constant", "", (), _of_type(value, type), type, True)


def _of_type(value: float | str, type: Type) -> float | str:
    if type in FLOATS:
        if isinstance(value, str) and value in SPECIAL:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Fault(".value", f"a number, or one of {', '.join(SPECIAL)} as text", value)
        return _nearest(value, type)
    if isinstance(value, bool) != (type == "bool") or not isinstance(value, int):
        raise Fault(".value", f"a value of type {type}", value)
    if type != "bool":
        least, most = range_of(type)
        if not least <= value <= most:
            raise Fault(".value", f"an {type} in {least} .. {most}", value)
    return value


def _nearest(value: float, type: Type) -> float | str:
    if value != value:
        return "nan"
    try:
        found: float = struct.unpack("f", struct.pack("f", value))[0] if type == "f32" else float(value)
    except (OverflowError, struct.error):  # OverflowError for an int that exceeds f64
        found = math.inf
    if math.isinf(found):
        if isinstance(value, float) and math.isinf(value):
            return "inf" if value > 0 else "-inf"
        raise Fault(".value", f"a number within the range of {type}", value)
    return found + 0.0


def apply(op: str, *args: Node | float) -> Node:
    """Applies `op` to expressions; a number gets the type of the node operands. Raises Fault."""
    known = OPERATIONS.get(op) if isinstance(op, str) else None
    if known is None:
        raise Fault(".op", "a known operation", op)
    nodes = _with_constants(op, args)
    given = tuple(arg.type for arg in nodes)
    if given not in known.signatures:
        raise Fault("", f"{op} of {_allowed(op)}", f"({', '.join(given)})", CONVERT)
    return make("apply", op, nodes, None, known.signatures[given], known.exact and all(arg.exact for arg in nodes))


def _with_constants(op: str, args: tuple[Node | float, ...]) -> tuple[Node, ...]:
    kinds = [arg.type for arg in args if isinstance(arg, Node)]
    if not kinds:
        raise Fault("", f"{op} of at least one expression", "numbers alone", "Use a constant with a type.")
    beside = kinds[-1]
    return tuple(arg if isinstance(arg, Node) else _beside(arg, beside) for arg in args)


def _beside(number: float, type: Type) -> Node:
    integral = isinstance(number, float) and type not in FLOATS and number.is_integer()
    return constant(int(number) if integral else number, type)


def _allowed(op: str) -> str:
    signatures = [f"({', '.join(types)})" for types in OPERATIONS[op].signatures]
    return " or ".join(signatures[:4]) + (f" and {len(signatures) - 4} more" if len(signatures) > 4 else "")
