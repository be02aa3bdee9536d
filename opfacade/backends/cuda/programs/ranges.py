"""Interval of the values of a node that are not NaN; it selects cheaper instructions, such as a division without scaling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from opfacade.programs.expression import Node

Range = tuple[float, float]
_ALL: Range = (-math.inf, math.inf)
# div.full scales its operands if the divisor is above 2^126 or below 2^-126; a factor of 4 covers errors of the divisor.
_LEAST, _MOST = 2.0**-124, 2.0**124


def is_plain_divisor(node: Node) -> bool:
    """Whether an f32 divisor is far enough from overflow and underflow to replace division by a product with the reciprocal."""
    low, high = range_of(node)
    return node.type == "f32" and low >= _LEAST and high <= _MOST


def range_of(node: Node) -> Range:
    if node.kind == "constant":
        known = not isinstance(node.data, str)
        return (float(node.data), float(node.data)) if known else _ALL
    rule = _RULES.get(node.op) if node.kind == "apply" else None
    return _ALL if rule is None else rule(*(range_of(arg) for arg in node.args))


def _absolute(x: Range) -> Range:
    return (0.0, max(abs(x[0]), abs(x[1])))


def _exponential(x: Range) -> Range:
    """An approximation may exceed 1 if the exponent is 0."""
    return (0.0, 2.0 if x[1] <= 0 else math.inf)


def _sum(x: Range, y: Range) -> Range:
    low, high = x[0] + y[0], x[1] + y[1]
    return (-math.inf if math.isnan(low) else low, math.inf if math.isnan(high) else high)


_RULES: Mapping[str, Callable[..., Range]] = {
    "neg": lambda x: (-x[1], -x[0]),
    "abs": _absolute,
    "exp": _exponential,
    "exp2": _exponential,
    "add": _sum,
    "select": lambda condition, x, y: (min(x[0], y[0]), max(x[1], y[1])),
    "maximum": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "minimum": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
}
