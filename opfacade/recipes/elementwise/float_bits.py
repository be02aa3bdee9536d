"""Recipes on the bit patterns of floats: the next number, and the parts of a number."""

from __future__ import annotations

from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant
from opfacade.recipes._draft import Draft
from opfacade.recipes._pointwise import HINT, floats, pointwise
from opfacade.recipes._recipe import add, recipe
from opfacade.recipes._tensors import Shaped, broadcast, refuse

MANTISSA = {"f32": 23, "f64": 52}
BIAS = {"f32": 126, "f64": 1022}


def next_after(input: Node, other: Node) -> Node:
    """The next bit pattern after that of the first argument, away from 0 or toward it; next to 0, the smallest number."""
    pattern = w.as_bits(floats(input))
    away = w.not_(w.xor(input < other, input > 0.0))
    beside = w.from_bits(w.select(away, pattern + 1, pattern - 1))
    least = w.copysign(w.from_bits(constant(1, pattern.type)), other)
    found = w.select(w.eq(input, 0.0), least, beside)
    found = w.select(w.eq(input, other), other, found)
    return w.select(w.or_(w.isnan(input), w.isnan(other)), input + other, found)


@recipe("nextafter", "only f32 and f64, because 16-bit floats are computed in f32")
def nextafter(input: Shaped, other: Shaped) -> MapDescriptor:
    if input.dtype not in MANTISSA or input.dtype != other.dtype:
        refuse("input", "f32 or f64, the dtype of other", (input.dtype, other.dtype), HINT)
    draft = Draft(broadcast([input.shape, other.shape]))
    return draft.map(next_after(draft.element("input", input), draft.element("other", other)), dtype=input.dtype)


def frexp(input: Node) -> tuple[Node, Node]:
    """A fraction in [0.5, 1) and an exponent of 2; subnormal numbers are scaled first."""
    x = floats(input)
    digits, bias = MANTISSA[x.type], BIAS[x.type]
    least = constant(2.0 ** (2 - bias), x.type)
    small = w.abs_(x) < least
    pattern = w.as_bits(w.select(small, x * 2.0 ** (digits + 1), x))
    high = w.and_(w.shr(pattern, digits), 2 * bias + 3)
    kept = w.and_(pattern, ~((2 * bias + 3) << digits))
    plain = w.or_(w.eq(x, 0.0), w.not_(w.isfinite(x)))
    fraction = w.select(plain, x, w.from_bits(w.or_(kept, bias << digits)))
    exponent = high - bias - w.select(small, constant(digits + 1, pattern.type), constant(0, pattern.type))
    whole = exponent if exponent.type == "i32" else w.i32(exponent)
    return fraction, w.select(plain, constant(0, "i32"), whole)


add("frexp", pointwise(frexp), "out0 is the fraction, out1 the exponent, i32")
