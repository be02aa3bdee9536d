"""Recipes with the names of lax, and with the meaning of lax where it differs from torch: `from opfacade.recipes import lax`.

There is no type promotion and no broadcasting: all tensors have the same shape and dtype, as in lax."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import activations as known
from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant
from opfacade.programs.types import SIGNED, Type, bits_of
from opfacade.recipes._pointwise import floats, is_float, pointwise
from opfacade.recipes._recipe import Recipe
from opfacade.recipes._tensors import Shaped, refuse
from opfacade.recipes.elementwise.float_bits import next_after
from opfacade.recipes.elementwise.special import scaled
from opfacade.recipes.lax._dynamic import MAKERS as DYNAMIC
from opfacade.recipes.lax._folds import MAKERS as FOLDS
from opfacade.recipes.lax._indexing import MAKERS

LAX: dict[str, Recipe[Any]] = {}


def _same_shape(make: Callable[..., MapDescriptor]) -> Callable[..., MapDescriptor]:
    """Refuses shapes that differ, except shapes of scalars."""
    signature = inspect.signature(make)

    def checked(*args: Args, **options: object) -> MapDescriptor:
        given = signature.bind(*args, **options).arguments
        shapes = {name: one.shape for name, one in given.items() if isinstance(one, Shaped) and one.shape}
        if len(set(shapes.values())) > 1:
            refuse(next(iter(shapes)), "tensors with the same shape", shapes, "Expand with broadcast_in_dim.")
        return make(*args, **options)

    checked.__signature__ = signature  # type: ignore[attr-defined]
    return checked


def _unsigned(x: Node) -> Node:
    """The same bits as an unsigned type."""
    return w.apply(f"u{x.type[1:]}", x) if x.type in SIGNED else x


def _shift_right_logical(x: Node, y: Node) -> Node:
    return w.apply(x.type, w.shr(_unsigned(x), _unsigned(y))) if x.type in SIGNED else w.shr(x, y)


def _population_count(x: Node) -> Node:
    """Counts bits by adding neighbours: in pairs, in groups of four, then in bytes, all in a 64-bit word."""
    bits = _wide(x)
    bits = bits - w.and_(w.shr(bits, 1), 0x5555555555555555)
    bits = w.and_(bits, 0x3333333333333333) + w.and_(w.shr(bits, 2), 0x3333333333333333)
    bits = w.and_(bits + w.shr(bits, 4), 0x0F0F0F0F0F0F0F0F)
    return _as(w.shr(bits * 0x0101010101010101, 56), x.type)


def _clz(x: Node) -> Node:
    """Sets all bits below the first set bit, then counts them."""
    bits = _wide(x)
    for by in (1, 2, 4, 8, 16, 32):
        bits = w.or_(bits, w.shr(bits, by))
    return constant(bits_of(x.type), x.type) - _as(_population_count(bits), x.type)


def _wide(x: Node) -> Node:
    return _as(_unsigned(x), "u64")


def _as(x: Node, type: Type) -> Node:
    return x if x.type == type else w.apply(type, x)


def _integer_pow(x: Node, n: Any) -> Node:
    """Repeated squaring; a negative exponent inverts the result."""
    if n < 0:
        return 1.0 / _integer_pow(floats(x), -n)
    found, square = constant(1, x.type), x
    while n:
        found, square, n = found * square if n % 2 else found, square * square, n // 2
    return found


def _sign(x: Node) -> Node:
    """The sign; NaN for NaN, and zeros keep their sign."""
    return w.select(w.eq(x, 0.0), x, w.sign(x)) if is_float(x) else w.sign(x)


def _either(number: str, truth: str) -> Callable[[Node, Node], Node]:
    return lambda x, y: w.apply(truth if x.type == "bool" else number, x, y)


UNARY: Mapping[str, Callable[[Node], Node]] = {
    **{name: getattr(w, name) for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1",
        "floor", "lgamma", "log", "log1p", "neg", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh",
    )},
    "abs": w.abs_, "bitwise_not": w.not_, "is_finite": w.isfinite, "logistic": known.sigmoid, "reciprocal": lambda x: 1.0 / x,
    "round": w.round_away, "sign": _sign, "square": lambda x: x * x, "erf_inv": w.erfinv,
    "bessel_i0e": scaled(0), "bessel_i1e": scaled(1), "population_count": _population_count, "clz": _clz,
}  # fmt: skip
BINARY: Mapping[str, Callable[[Node, Node], Node]] = {
    **{name: getattr(w, name) for name in ("add", "sub", "mul", "atan2", "pow", "rem", "eq", "ne", "lt", "le", "gt", "ge")},
    "bitwise_and": w.and_, "bitwise_or": w.or_, "bitwise_xor": w.xor, "max": _either("maximum", "or"),
    "min": _either("minimum", "and"),
    "div": lambda x, y: x / y if is_float(x) else w.truncdiv(x, y), "nextafter": next_after,
    "shift_left": w.shl, "shift_right_arithmetic": w.shr, "shift_right_logical": _shift_right_logical,
}  # fmt: skip


def _put(name: str, make: Callable[..., MapDescriptor], note: str = "") -> None:
    LAX[name] = Recipe(f"lax.{name}", (f"lax.{name}",), make, note)


def _of_one(function: Callable[[Node], Node]) -> Callable[..., MapDescriptor]:
    return pointwise(lambda x: function(x))


def _of_two(function: Callable[[Node, Node], Node]) -> Callable[..., MapDescriptor]:
    return _same_shape(pointwise(lambda x, y: function(x, y)))


for _name, _function in UNARY.items():
    _put(_name, _of_one(_function))
for _name, _both in BINARY.items():
    _put(_name, _of_two(_both))
_put("integer_pow", pointwise(lambda x, n: _integer_pow(x, n)))
_put("clamp", _same_shape(pointwise(lambda min, x, max: w.minimum(w.maximum(x, min), max))))
for _name, _move in {**MAKERS, **DYNAMIC, **FOLDS}.items():
    _put(_name, _move)


def __dir__() -> Sequence[str]:
    return sorted(LAX)


if TYPE_CHECKING:
    from opfacade.core.descriptor import Args

    def __getattr__(name: str) -> Any: ...

else:

    def __getattr__(name: str) -> Recipe[Any]:
        if name not in LAX:
            raise AttributeError(f"no recipe lax.{name}: docs/ops/recipes.md lists all recipes")
        return LAX[name]
