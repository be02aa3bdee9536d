"""Sums, products, means, variances and counts along axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import DType
from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, apply
from opfacade.programs.types import FLOATS
from opfacade.recipes._draft import zero
from opfacade.recipes._folding import FoldDraft, as_float, begun, cast
from opfacade.recipes._pointwise import floats, is_float, truth
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped

if TYPE_CHECKING:
    from opfacade.recipes._tensors import Dims


WIDE = "integers and bools are converted to i64 first"


def summand(x: Node, given: DType, dtype: Any) -> tuple[Node, DType]:
    """An element of a sum and the dtype of the sum: by default, integers and bools are summed as i64."""
    return cast(x, given, "i64" if dtype is None and x.type not in FLOATS else dtype)


@recipe("sum", WIDE)
def sum_of(input: Shaped, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> FoldDescriptor:
    draft = begun(input, dim)
    x, wanted = summand(draft.element("input", input), input.dtype, dtype)
    return draft.rows(draft.join("sum", x), dtype=wanted, keepdim=keepdim)


@recipe("prod", WIDE)
def prod(input: Shaped, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> FoldDescriptor:
    draft = begun(input, dim)
    x, wanted = summand(draft.element("input", input), input.dtype, dtype)
    return draft.rows(draft.join("prod", x), dtype=wanted, keepdim=keepdim)


@recipe("nansum", WIDE)
def nansum(input: Shaped, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> FoldDescriptor:
    draft = begun(input, dim)
    x, wanted = summand(_without_nan(draft.element("input", input)), input.dtype, dtype)
    return draft.rows(draft.join("sum", x), dtype=wanted, keepdim=keepdim)


def _without_nan(x: Node) -> Node:
    return w.select(w.isnan(x), zero(x.type), x) if is_float(x) else x


@recipe("mean")
def mean(input: Shaped, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> FoldDescriptor:
    draft = begun(input, dim)
    x, wanted = cast(draft.element("input", input), input.dtype, dtype)
    return draft.rows(mean_of(draft, floats(x)), dtype=wanted, keepdim=keepdim)


def mean_of(draft: FoldDraft, x: Node) -> Node:
    return draft.join("sum", x) / as_float(draft.count(), x)


@recipe("nanmean")
def nanmean(input: Shaped, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> FoldDescriptor:
    draft = begun(input, dim)
    x, wanted = cast(draft.element("input", input), input.dtype, dtype)
    there = w.not_(w.isnan(floats(x)))
    found = draft.join("sum", _without_nan(x)) / as_float(counted(draft, there), x)
    return draft.rows(found, dtype=wanted, keepdim=keepdim)


def counted(draft: FoldDraft, truths: Node) -> Node:
    """The number of true elements, as i64."""
    return draft.join("sum", apply("i64", truths))


@recipe("count_nonzero", "i64")
def count_nonzero(input: Shaped, dim: Dims = None) -> FoldDescriptor:
    """NaN counts as nonzero."""
    draft = begun(input, dim)
    return draft.rows(counted(draft, truth(draft.element("input", input))))


def _truths(reducer: str) -> Any:
    def make(input: Shaped, dim: Dims = None, keepdim: bool = False) -> FoldDescriptor:
        draft = begun(input, dim)
        found = draft.join(reducer, truth(draft.element("input", input)))
        return draft.rows(w.u8(found) if input.dtype == "u8" else found, keepdim=keepdim)

    return make


recipe("any", "u8 for u8 inputs, as in torch")(_truths("any"))
recipe("all", "u8 for u8 inputs, as in torch")(_truths("all"))


def number_of(draft: FoldDraft, like: Node, there: Node | None = None) -> Node:
    """The number of elements, as a float."""
    return as_float(draft.count() if there is None else counted(draft, there), like)


def hidden(x: Node, there: Node | None, instead: Node) -> Node:
    return x if there is None else w.select(there, x, instead)


@recipe("logsumexp")
def logsumexp(input: Shaped, dim: Dims = None, keepdim: bool = False) -> FoldDescriptor:
    """The result is -inf if all elements are -inf."""
    draft = begun(input, dim)
    found = log_of_sum(draft, floats(draft.element("input", input)))
    return draft.rows(found, dtype=input.dtype, keepdim=keepdim)


def log_of_sum(draft: FoldDraft, x: Node, axes: Any = None) -> Node:
    return draft.join("expsum", x, "max", axes) + w.log(draft.join("expsum", x, "sum", axes))
