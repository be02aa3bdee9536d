"""lax's reductions: the result has the dtype of the operand, and integers wrap. If elements are equal,
argmax and argmin return the first; NaN is both the largest and the smallest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Descriptor
from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant
from opfacade.recipes._folding import FoldDraft, cast
from opfacade.recipes._pointwise import pointwise
from opfacade.recipes._tensors import Shaped, axes_of, axis_of, refuse
from opfacade.recipes.folds.min_max import extreme, placed

if TYPE_CHECKING:
    from collections.abc import Sequence


_EXPONENT, _MANTISSA = 8, 23  # mantissa and exponent bits of f32
_INFINITE = 0x7F800000  # bits of an f32


def _begun(operand: Shaped, axes: Sequence[int]) -> FoldDraft:
    """Without axes, no elements are combined."""
    return FoldDraft(operand.shape, axes_of("axes", tuple(axes), operand.rank)[: operand.rank])


def _joined(reducer: str) -> Callable[..., FoldDescriptor]:
    def make(operand: Shaped, axes: Sequence[int]) -> FoldDescriptor:
        draft = _begun(operand, axes)
        return draft.rows(draft.join(reducer, draft.element("operand", operand)), dtype=operand.dtype)

    return make


def _extreme(word: str) -> Callable[..., FoldDescriptor]:
    def make(operand: Shaped, axes: Sequence[int]) -> FoldDescriptor:
        draft = _begun(operand, axes)
        return draft.rows(extreme(draft, draft.element("operand", operand), word), dtype=operand.dtype)

    return make


def _truths(reducer: str) -> Callable[..., FoldDescriptor]:
    def make(operand: Shaped, axes: Sequence[int]) -> FoldDescriptor:
        if operand.dtype != "bool":
            refuse("operand", "bool", operand.dtype, "There is no bitwise reducer for integers.")
        return _joined(reducer)(operand, axes)

    return make


def _place(word: str) -> Callable[..., FoldDescriptor]:
    def make(operand: Shaped, axis: int, index_dtype: Any = "i32") -> FoldDescriptor:
        if not operand.rank:
            refuse("operand", "at least one axis", operand.shape)
        draft = FoldDraft(operand.shape, (axis_of("axis", axis, operand.rank),))
        found, dtype = cast(placed(draft, draft.element("operand", operand), word)[1], "i64", index_dtype)
        return draft.rows(found, dtype=dtype)

    return make


def reduce_precision(operand: Shaped, exponent_bits: int, mantissa_bits: int) -> Descriptor[Any]:
    """Rounds to a float with fewer bits, to nearest with ties to even. Results below its normal range become 0, and results
    above it infinity. Only for f32; convert other floats first."""
    if operand.dtype != "f32":
        refuse("operand", "f32", operand.dtype, 'Convert with recipes.to(x, "f32").')
    given = {"exponent_bits": (exponent_bits, _EXPONENT, 1), "mantissa_bits": (mantissa_bits, _MANTISSA, 0)}
    for name, (bits, most, fewest) in given.items():
        if not isinstance(bits, int) or not fewest <= bits <= most:
            refuse(name, f"{fewest} .. {most}, the bits of f32", bits)
    return pointwise(lambda operand: _reduced(operand, exponent_bits, mantissa_bits))(operand)


def _reduced(x: Node, exponent: int, mantissa: int) -> Node:
    """Works on the bits without the sign: rounds at the end of the mantissa, then compares with both ends of the exponent
    range."""
    bits, cut = w.as_bits(x), _MANTISSA - mantissa
    size = w.and_(bits, 0x7FFFFFFF)
    if cut:
        odd = w.and_(w.shr(size, cut), 1)
        size = w.and_(size + (odd + ((1 << (cut - 1)) - 1)), -(1 << cut))
    half = (1 << (exponent - 1)) - 1
    least, most = (127 - half + 1) << _MANTISSA, ((127 + half + 1) << _MANTISSA) - 1
    if exponent < _EXPONENT:
        size = w.select(size > most, constant(_INFINITE, "i32"), w.select(size < least, constant(0, "i32"), size))
    signed = w.from_bits(w.or_(size, w.and_(bits, -(1 << 31))))
    return w.select(w.isnan(x), x, signed)


MAKERS: Mapping[str, Callable[..., Any]] = {
    **{f"reduce_{word}": _joined(word) for word in ("sum", "prod")},
    **{f"reduce_{word}": _extreme(word) for word in ("max", "min")},
    "reduce_and": _truths("all"),
    "reduce_or": _truths("any"),
    "argmax": _place("max"),
    "argmin": _place("min"),
    "reduce_precision": reduce_precision,
}
