"""The operations of the language: their argument and result types, and whether the result has the same bits on every machine.

An operation is *exact* if integer arithmetic, a bit pattern or one correct rounding defines its result. The others are
functions whose errors, in units in the last place, are in `programs.ulps`. docs/programs.md defines the edge cases of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from opfacade.programs.types import FLOATS, INTEGERS, NUMBERS, ROUNDED, TYPES, Type

Signatures = Mapping[tuple[Type, ...], Type]


class Operation(NamedTuple):
    """signatures: types of the arguments -> type of the result. jumps: a small change of an argument may change the result by
    more than a constant times it."""

    signatures: Signatures
    exact: bool = True
    jumps: bool = False


UNARY_FUNCTIONS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "rsqrt", "cbrt", "lgamma",
    "erfinv", "erfcx", "ndtri", "bessel_i0", "bessel_i1", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1",
)  # fmt: skip
BINARY_FUNCTIONS = ("pow", "atan2", "hypot")
FUNCTIONS = (*UNARY_FUNCTIONS, *BINARY_FUNCTIONS)
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
ROUNDINGS = tuple(f"round_{dtype}" for dtype in ROUNDED)
TO_INTEGRAL = ("floor", "ceil", "trunc", "rint", "round_away")
TESTS = ("isnan", "isinf", "isfinite", "signbit")


def _over(types: Iterable[Type], count: int, gives: Type | None = None) -> Signatures:
    return {(kind,) * count: gives or kind for kind in types}


def _operations() -> dict[str, Operation]:
    found: dict[str, Operation] = {}

    def put(names: Iterable[str], signatures: Signatures, exact: bool = True, jumps: bool = False) -> None:
        found.update(dict.fromkeys(names, Operation(signatures, exact, jumps)))

    put(("add", "sub", "mul", "min", "max", "minimum", "maximum"), _over(NUMBERS, 2))
    put(("div", "fmin", "fmax"), _over(FLOATS, 2))
    put(("copysign",), _over(FLOATS, 2), jumps=True)
    put(("mod", "rem"), _over(NUMBERS, 2), jumps=True)
    put(("floordiv", "truncdiv", "shl", "shr"), _over(INTEGERS, 2), jumps=True)
    put(("neg", "abs"), _over(NUMBERS, 1))
    put(("sign",), _over(NUMBERS, 1), jumps=True)
    put(COMPARISONS, _over(NUMBERS, 2, "bool"), jumps=True)
    put(("and", "or", "xor"), _over(("bool", *INTEGERS), 2), jumps=True)
    put(("not",), _over(("bool", *INTEGERS), 1), jumps=True)
    put(("select",), {("bool", kind, kind): kind for kind in TYPES})
    put(TO_INTEGRAL, _over(FLOATS, 1), jumps=True)
    put(TESTS, _over(FLOATS, 1, "bool"), jumps=True)
    put(("sqrt",), _over(FLOATS, 1))
    put(ROUNDINGS, _over(("f32",), 1))
    put(("round_f8_e8m0",), _over(("f32",), 1), jumps=True)
    put(UNARY_FUNCTIONS, _over(FLOATS, 1), exact=False)
    put(BINARY_FUNCTIONS, _over(FLOATS, 2), exact=False)
    put(("as_bits",), {("f32",): "i32", ("f64",): "i64"}, jumps=True)
    put(("from_bits",), {("i32",): "f32", ("i64",): "f64"}, jumps=True)
    put(("bits",), {("u64",) * 4: "u32"}, jumps=True)
    for kind in TYPES:
        put((kind,), {(other,): kind for other in TYPES if other != kind}, jumps=kind not in FLOATS)
    return found


OPERATIONS: Mapping[str, Operation] = _operations()
