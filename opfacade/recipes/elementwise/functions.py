"""Functions of one float, and functions composed of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant
from opfacade.recipes._pointwise import floats, pointwise, unary
from opfacade.recipes._recipe import table
from opfacade.recipes._tensors import refuse

if TYPE_CHECKING:
    from opfacade.recipes._tensors import AnyDType, Scalar


def sinc(x: Node) -> Node:
    """sin(pi x) / (pi x). Computed from the distance to the nearest integer, which is exact; the parity of that integer gives
    the sign."""
    near = w.rint(x)
    part = w.sin(floats(x - near) * math.pi)
    odd = w.ne(w.mod(near, 2.0), 0.0)
    return w.select(w.eq(x, 0.0), constant(1.0, x.type), w.select(odd, -part, part) / (x * math.pi))


def logit(input: Node, eps: Scalar | None = None) -> Node:
    """log(x / (1 - x)); computed from the distance to 1/2 if the quotient is near 1."""
    x = floats(input)
    if eps is not None:
        x = w.select(x < eps, eps, w.select(x > 1.0 - eps, 1.0 - eps, x))
    rest = 1.0 - x
    near = w.abs_(x - 0.5) < 0.25
    return w.select(near, w.log1p((x - 0.5) * 2.0 / rest), w.log(x / rest))


def entr(x: Node) -> Node:
    below = w.select(w.eq(x, 0.0), constant(0.0, x.type), constant("-inf", x.type))
    return w.select(x > 0.0, -x * w.log(x), w.select(w.isnan(x), x, below))


def ndtr(x: Node) -> Node:
    return 0.5 * w.erfc(x * -math.sqrt(0.5))


def xlogy(input: Node, other: Node) -> Node:
    return _zero_times(input, other, w.log(other))


def xlog1py(input: Node, other: Node) -> Node:
    return _zero_times(input, other, w.log1p(other))


def _zero_times(x: Node, y: Node, function: Node) -> Node:
    """0 if x is 0, unless y is NaN."""
    return w.select(w.isnan(y), y, w.select(w.eq(x, 0.0), constant(0.0, x.type), x * function))


def mvlgamma(input: Node, p: Any) -> Node:
    """The sum of lgamma(x - i / 2) for i < p, plus a constant."""
    if p < 1:
        refuse("p", "at least 1", p)
    found = constant(math.log(math.pi) * p * (p - 1) / 4, floats(input).type)
    for i in range(p):
        found = found + w.lgamma(input - i / 2 if i else input)
    return found


def logaddexp(input: Node, other: Node) -> Node:
    return w.maximum(input, other) + w.log1p(w.exp(-_apart(input, other)))


def logaddexp2(input: Node, other: Node) -> Node:
    grown = w.log1p(w.exp2(-_apart(input, other)))
    return w.maximum(input, other) + grown * (1 / math.log(2))


def masked_logaddexp(
    input: Node, other: Node, dtype: AnyDType | None = None, input_mask: Any = None, other_mask: Any = None
) -> Node:
    """A masked element counts as -inf."""
    if dtype is not None:
        refuse("dtype", "None, because the input is not converted", dtype)
    least = constant("-inf", floats(input).type)
    a = input if input_mask is None else w.select(input_mask, input, least)
    return logaddexp(a, other if other_mask is None else w.select(other_mask, other, least))


def _apart(a: Node, b: Node) -> Node:
    """|x - y|; 0 for equal infinities."""
    return w.select(w.eq(a, b), constant(0.0, a.type), w.abs_(a - b))


def angle(x: Node) -> Node:
    turned = w.select(x < 0.0, constant(math.pi, x.type), constant(0.0, x.type))
    return w.select(w.isnan(floats(x)), x, turned)


table(
    {
        "acos arccos": w.acos,
        "acosh arccosh": w.acosh,
        "asin arcsin": w.asin,
        "asinh arcsinh": w.asinh,
        "atan arctan": w.atan,
        "atanh arctanh": w.atanh,
        "cos": w.cos,
        "cosh": w.cosh,
        "sin": w.sin,
        "sinh": w.sinh,
        "tan": w.tan,
        "tanh nn.functional.tanh": w.tanh,
        "erf special.erf": w.erf,
        "erfc special.erfc": w.erfc,
        "exp": w.exp,
        "exp2 special.exp2": w.exp2,
        "expm1 special.expm1": w.expm1,
        "log": w.log,
        "log10": w.log10,
        "log1p special.log1p": w.log1p,
        "log2": w.log2,
        "lgamma special.gammaln": w.lgamma,
        "sqrt": w.sqrt,
        "rsqrt": w.rsqrt,
        "cbrt": w.cbrt,
        "sinc special.sinc": sinc,
        "special.entr": entr,
        "special.ndtr": ndtr,
        "angle": angle,
        "deg2rad": lambda x: floats(x) * (math.pi / 180),
        "rad2deg": lambda x: floats(x) * (180 / math.pi),
        "reciprocal": lambda x: 1.0 / floats(x),
    },
    unary,
)
table(
    {
        "atan2 arctan2": lambda input, other: w.atan2(input, other),
        "hypot": lambda input, other: w.hypot(input, other),
        "logaddexp": logaddexp,
        "logaddexp2": logaddexp2,
        "masked.logaddexp": masked_logaddexp,
        "logit special.logit": logit,
        "xlogy special.xlogy": xlogy,
        "special.xlog1py": xlog1py,
        "mvlgamma special.multigammaln": mvlgamma,
    },
    pointwise,
)
