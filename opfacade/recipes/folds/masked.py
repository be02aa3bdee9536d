"""torch.masked: reductions, softmaxes and norms over the elements where a mask is true, or over all elements without a mask."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import DType
from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant
from opfacade.programs.types import range_of
from opfacade.recipes._draft import Draft, one, zero
from opfacade.recipes._folding import FoldDraft, begun, cast
from opfacade.recipes._pointwise import floats, is_float
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, broadcast, refuse
from opfacade.recipes.folds.min_max import extreme, placed
from opfacade.recipes.folds.reductions import WIDE, hidden, log_of_sum, number_of, summand
from opfacade.recipes.folds.softmaxes import along, log_share, share
from opfacade.recipes.folds.variance import corrected, spread
from opfacade.recipes.folds.vector_norms import length

if TYPE_CHECKING:
    from opfacade.recipes._tensors import AnyDType, Dims, Scalar


def seen(draft: Draft, mask: Shaped | None) -> Node | None:
    """Whether an element is included; None: all elements are."""
    if mask is None:
        return None
    if not isinstance(mask, Shaped) or mask.dtype != "bool" or broadcast([draft.shape, mask.shape]) != draft.shape:
        refuse("mask", f"a bool tensor whose shape broadcasts to {draft.shape}", mask)
    return draft.element("mask", mask)


def least(x: Node, sign: int) -> Node:
    """The smallest (sign 1) or largest (sign -1) value of a type."""
    if is_float(x):
        return constant("-inf" if sign > 0 else "inf", x.type)
    if x.type == "bool":
        return constant(sign < 0, "bool")
    return constant(range_of(x.type)[0 if sign > 0 else 1], x.type)


def _summed(word: str, identity: Any) -> Any:
    def make(input: Shaped, dim: Any = None, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> FoldDescriptor:
        draft = begun(input, dim)
        x, wanted = summand(draft.element("input", input), input.dtype, dtype)
        return draft.rows(draft.join(word, hidden(x, seen(draft, mask), identity(x.type))), dtype=wanted, keepdim=bool(keepdim))

    return make


recipe("masked.sum", WIDE)(_summed("sum", zero))
recipe("masked.prod", WIDE)(_summed("prod", one))


def _amount(word: str, sign: int) -> Any:
    def make(input: Shaped, dim: Any = None, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> FoldDescriptor:
        draft = begun(input, dim)
        x, wanted = cast(draft.element("input", input), input.dtype, dtype)
        found = extreme(draft, hidden(x, seen(draft, mask), least(x, sign)), word)
        return draft.rows(found, dtype=wanted, keepdim=bool(keepdim))

    return make


def _place(word: str, sign: int) -> Any:
    def make(input: Shaped, dim: Any = None, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> FoldDescriptor:
        draft = begun(input, dim)
        x = draft.element("input", input)
        place = placed(draft, hidden(x, seen(draft, mask), least(x, sign)), word)[1]
        found, wanted = cast(place, "i64", input.dtype if dtype is None else dtype)
        return draft.rows(found, dtype=wanted, keepdim=bool(keepdim))

    return make


for _word, _sign in (("max", 1), ("min", -1)):
    recipe(f"masked.a{_word}")(_amount(_word, _sign))
    recipe(f"masked.arg{_word}", "the index has the dtype of the input, as in torch")(_place(_word, _sign))


@recipe("masked.mean")
def masked_mean(
    input: Shaped, dim: Dims = None, keepdim: bool = False, dtype: AnyDType | None = None, mask: Shaped | None = None
) -> FoldDescriptor:
    """NaN if no element is included."""
    draft, x, there, wanted = _begun(input, dim, dtype, mask)
    found = draft.join("sum", hidden(x, there, zero(x.type))) / number_of(draft, x, there)
    return draft.rows(found, dtype=wanted, keepdim=bool(keepdim))


def _begun(input: Shaped, dim: Any, dtype: Any, mask: Any) -> tuple[FoldDraft, Node, Node | None, DType]:
    draft = begun(input, dim)
    x, wanted = cast(draft.element("input", input), input.dtype, dtype)
    return draft, floats(x), seen(draft, mask), wanted


@recipe("masked.norm", "ord is a number")
def masked_norm(
    input: Shaped,
    ord: Scalar | str | None = 2.0,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: AnyDType | None = None,
    mask: Shaped | None = None,
) -> FoldDescriptor:
    draft, x, there, wanted = _begun(input, dim, dtype, mask)
    found = length(draft, hidden(x, there, _no_length(x, ord)), 2.0 if ord is None else ord)
    return draft.rows(found, dtype=wanted, keepdim=bool(keepdim))


def _no_length(x: Node, ord: Scalar | str | None) -> Node:
    """The neutral element of a norm, as in torch: 0, or inf for the minimum."""
    return constant("inf", x.type) if ord == -math.inf else zero(x.type)


def _spread(take_root: bool) -> Any:
    def make(
        input: Shaped, dim: Any = None, unbiased: Any = None, correction: Any = None, keepdim: bool = False,
        dtype: Any = None, mask: Any = None,
    ) -> FoldDescriptor:  # fmt: skip
        dim, correction = corrected(dim, unbiased, correction)
        draft, x, there, wanted = _begun(input, dim, dtype, mask)
        found = spread(draft, x, correction, there)[0]
        return draft.rows(w.sqrt(found) if take_root else found, dtype=wanted, keepdim=bool(keepdim))

    return make


recipe("masked.var")(_spread(False))
recipe("masked.std")(_spread(True))


@recipe("masked.logsumexp")
def masked_logsumexp(
    input: Shaped, dim: Dims = None, keepdim: bool = False, dtype: AnyDType | None = None, mask: Shaped | None = None
) -> FoldDescriptor:
    """-inf if no element is included."""
    draft, x, there, wanted = _begun(input, dim, dtype, mask)
    found = log_of_sum(draft, hidden(x, there, constant("-inf", x.type)))
    return draft.rows(found, dtype=wanted, keepdim=bool(keepdim))


def _along(function: Any, hide: str) -> Any:
    def make(input: Shaped, dim: int, dtype: Any = None, mask: Any = None) -> FoldDescriptor:
        """NaN if no element is included."""
        draft = along(input, dim)
        x, wanted = cast(draft.element("input", input), input.dtype, dtype)
        found = function(draft, hidden(floats(x), seen(draft, mask), constant(hide, x.type)))
        return draft.elements(found, dtype=wanted)

    return make


recipe("masked.softmax")(_along(share, "-inf"))
recipe("masked.log_softmax")(_along(log_share, "-inf"))
recipe("masked.softmin")(_along(lambda draft, x: share(draft, -x), "inf"))


@recipe("masked.normalize", "ord is a number")
def masked_normalize(
    input: Shaped, ord: Any, dim: Any, eps: Any = 1e-12, dtype: Any = None, mask: Any = None
) -> FoldDescriptor:
    """Excluded elements become 0."""
    draft, x, there, wanted = _begun(input, dim, dtype, mask)
    size = length(draft, hidden(x, there, _no_length(x, ord)), ord)
    x = hidden(x, there, zero(x.type))
    return draft.elements(x / w.maximum(size, draft.number("eps", eps, x.type)), dtype=wanted)
