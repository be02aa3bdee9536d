"""Comparisons, tests, logical and bitwise operations, whose results are exact."""

from __future__ import annotations

from typing import Any

from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant
from opfacade.recipes._pointwise import floats, is_float, pointwise, truth, unary
from opfacade.recipes._recipe import table


def _compared(word: str) -> Any:
    """Bools are compared as 0 and 1."""

    def compare(input: Node, other: Node) -> Node:
        a, b = (w.u8(one) if one.type == "bool" else one for one in (input, other))
        found: Node = getattr(w, word)(a, b)
        return found

    return compare


def isclose(input: Node, other: Node, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: Any = False) -> Node:
    apart = w.abs_(floats(input) - other)
    near = w.and_(w.isfinite(apart), apart <= atol + w.abs_(other * rtol))
    found = w.or_(w.eq(input, other), near)
    return w.or_(found, w.and_(w.isnan(input), w.isnan(other))) if equal_nan else found


def _tested(word: str, of_integers: bool) -> Any:
    """A test of floats; for integers, the result is always `of_integers`."""
    return lambda x: getattr(w, word)(x) if is_float(x) else _always(x, of_integers)


def _always(x: Node, value: bool) -> Node:
    same = w.eq(w.u8(x) if x.type == "bool" else x, w.u8(x) if x.type == "bool" else x)
    return same if value else w.not_(same)


def _infinite(sign: int) -> Any:
    return lambda x: w.eq(x, constant("inf" if sign > 0 else "-inf", x.type)) if is_float(x) else _always(x, False)


def signbit(x: Node) -> Node:
    if is_float(x):
        return w.signbit(x)
    return x < 0 if x.type != "bool" else _always(x, False)


def _logical(word: str) -> Any:
    return lambda input, other: getattr(w, word)(truth(input), truth(other))


def _shift(word: str) -> Any:
    return lambda input, other: getattr(w, word)(input, other)


table({f"{word} {more}".strip(): _compared(word) for word, more in [
    ("eq", ""), ("ne", "not_equal"), ("lt", "less"), ("le", "less_equal"), ("gt", "greater"), ("ge", "greater_equal"),
]}, pointwise)  # fmt: skip
table(
    {
        "isnan": _tested("isnan", False),
        "isinf": _tested("isinf", False),
        "isfinite": _tested("isfinite", True),
        "isposinf": _infinite(1),
        "isneginf": _infinite(-1),
        "isreal": lambda x: _always(x, True) if not is_float(x) else w.or_(w.eq(x, x), w.isnan(x)),
        "signbit": signbit,
        "logical_not": lambda x: w.not_(truth(x)),
        "bitwise_not": w.not_,
    },
    unary,
)
table(
    {
        "isclose": isclose,
        "logical_and": _logical("and_"),
        "logical_or": _logical("or_"),
        "logical_xor": _logical("xor"),
        "bitwise_and __rand__": _shift("and_"),
        "bitwise_or __ror__": _shift("or_"),
        "bitwise_xor __rxor__": _shift("xor"),
        "bitwise_left_shift __lshift__": _shift("shl"),
        "bitwise_right_shift __rshift__": _shift("shr"),
    },
    pointwise,
)
