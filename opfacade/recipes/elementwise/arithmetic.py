"""Sums, products, quotients, powers and rounding."""

from __future__ import annotations

from typing import Any

from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant
from opfacade.recipes._draft import one, zero
from opfacade.recipes._pointwise import floats, is_float, pointwise, unary
from opfacade.recipes._recipe import table
from opfacade.recipes._tensors import refuse


def _scaled(x: Node, alpha: Any) -> Node:
    return x if alpha is None else _product(x, alpha)


def _sum(a: Node, b: Node) -> Node:
    return w.or_(a, b) if a.type == "bool" else a + b


def _product(a: Node, b: Node) -> Node:
    return w.and_(a, b) if a.type == "bool" else a * b


def divided(input: Node, other: Node, rounding_mode: object = None) -> Node:
    if rounding_mode is None:
        return floats(input) / other
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if rounding_mode != "trunc":
        refuse("rounding_mode", 'None, "trunc" or "floor"', rounding_mode)
    return w.trunc(input / other) if is_float(input) else w.truncdiv(input, other)


def floor_divide(input: Node, other: Node) -> Node:
    """For floats, the exact remainder is subtracted first, so rounding never crosses an integer; a / b if b is 0. The
    remainder has the sign of a, because a floored remainder of an infinite b would be infinite."""
    if not is_float(input):
        return w.floordiv(input, other)
    a, b = input, other
    rest = w.rem(a, b)
    below = w.and_(w.ne(rest, 0.0), w.xor(rest < 0.0, b < 0.0))
    whole = (a - rest) / b
    quotient = w.select(below, whole - 1.0, whole)
    nearest = w.rint(quotient)
    signed = w.select(w.eq(quotient, 0.0), w.copysign(constant(0.0, a.type), a / b), nearest)
    return w.select(w.eq(b, 0.0), a / b, signed)


def rounded(input: Node, decimals: Any = 0) -> Node:
    """Rounds half to even, at a decimal place after or before the point."""
    if not is_float(input) or decimals == 0:
        return w.rint(input) if is_float(input) else input
    ten: float = 10.0 ** abs(decimals)
    return w.rint(input * ten) / ten if decimals > 0 else w.rint(input / ten) * ten


def power(input: Node, exponent: Node) -> Node:
    return w.pow(floats(input), exponent)


def frac(x: Node) -> Node:
    return floats(x) - w.trunc(x)


def sign(x: Node) -> Node:
    """The sign of NaN is 0, as in torch."""
    if x.type == "bool":
        return x
    return w.select(w.isnan(x), constant(0.0, x.type), w.sign(x)) if is_float(x) else w.sign(x)


def rounding(word: str) -> Any:
    """A rounding function for floats; integers are returned unchanged."""
    return lambda x: getattr(w, word)(x) if is_float(x) else x


def heaviside(input: Node, values: Node) -> Node:
    if input.type == "bool":
        return w.select(input, one("bool"), values)
    return w.select(w.eq(input, 0), values, w.select(input > 0, one(input.type), zero(input.type)))


def ldexp(input: Node, other: Node) -> Node:
    return floats(input) * w.exp2(other)


table(
    {
        "abs absolute": w.abs_,
        "neg negative": lambda x: -x,
        "square": lambda x: x * x,
        "sign": sign,
        "sgn": sign,
        "ceil": rounding("ceil"),
        "floor": rounding("floor"),
        "trunc fix": rounding("trunc"),
        "frac": frac,
    },
    unary,
)
table(
    {
        "add __radd__": lambda input, other, alpha=None: _sum(input, _scaled(other, alpha)),
        "sub subtract": lambda input, other, alpha=None: input - _scaled(other, alpha),
        "rsub __rsub__": lambda input, other, alpha=None: other - _scaled(input, alpha),
        "mul multiply __rmul__": lambda input, other: _product(input, other),
        "div divide": divided,
        "true_divide": lambda input, other: floats(input) / other,
        "__rdiv__": lambda input, other: other / floats(input),
        "floor_divide": floor_divide,
        "remainder": lambda input, other: w.mod(input, other),
        "__rmod__": lambda input, other: w.mod(other, input),
        "fmod": lambda input, other: w.rem(input, other),
        "pow": power,
        "__rpow__": lambda input, other: w.pow(other, floats(input)),
        "round": rounded,
        "addcmul": lambda input, tensor1, tensor2, value=None: input + _scaled(tensor1 * tensor2, value),
        "addcdiv": lambda input, tensor1, tensor2, value=None: input + _scaled(floats(tensor1) / tensor2, value),
        "copysign": lambda input, other: w.copysign(floats(input), other),
        "heaviside": heaviside,
        "ldexp": ldexp,
        "nn.functional.softsign": lambda input: input / (w.abs_(floats(input)) + 1.0),
    },
    pointwise,
)
