"""Sums, products, means, variances and counts along axes."""

from __future__ import annotations

from typing import Any

from opfacade.core.dtypes import DType
from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, apply
from opfacade.programs.types import FLOATS
from opfacade.recipes._draft import zero
from opfacade.recipes._folding import FoldDraft, as_float, begun, cast
from opfacade.recipes._pointwise import floats, is_float, truth
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, axis_of, refuse
from opfacade.recipes.moves import copied

WIDE = "integers and truths are converted to i64 before"


def summand(x: Node, given: DType, dtype: Any) -> tuple[Node, DType]:
    """An element of a sum and the dtype of the sum: integers and truths are joined as i64, where no dtype is given."""
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
    """How many are true: i64."""
    return draft.join("sum", apply("i64", truths))


@recipe("count_nonzero", "i64")
def count_nonzero(input: Shaped, dim: Any = None) -> FoldDescriptor:
    """NaN is not 0."""
    draft = begun(input, dim)
    return draft.rows(counted(draft, truth(draft.element("input", input))))


def _truths(reducer: str) -> Any:
    def make(input: Shaped, dim: Any = None, keepdim: bool = False) -> FoldDescriptor:
        draft = begun(input, dim)
        found = draft.join(reducer, truth(draft.element("input", input)))
        return draft.rows(w.u8(found) if input.dtype == "u8" else found, keepdim=keepdim)

    return make


recipe("any", "of u8 it is u8, as torch has it")(_truths("any"))
recipe("all", "of u8 it is u8, as torch has it")(_truths("all"))


def spread(draft: FoldDraft, x: Node, correction: Any, there: Node | None = None) -> tuple[Node, Node]:
    """The variance of deviations from the mean, and the mean, of the elements that are there.

    correction: what the divisor is less than their number; it is never below 0.
    """
    count, none = number_of(draft, floats(x), there), zero(x.type)
    mean = draft.join("sum", hidden(x, there, none)) / count
    total = draft.join("sum", hidden((x - mean) * (x - mean), there, none))
    return total / w.maximum(count - draft.number("correction", correction, x.type), 0.0), mean


def number_of(draft: FoldDraft, like: Node, there: Node | None = None) -> Node:
    """How many elements are there, as a float."""
    return as_float(draft.count() if there is None else counted(draft, there), like)


def hidden(x: Node, there: Node | None, instead: Node) -> Node:
    return x if there is None else w.select(there, x, instead)


def corrected(dim: Any, unbiased: Any, correction: Any) -> tuple[Any, Any]:
    """dim and correction; var(x, True) says unbiased alone."""
    dim, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
    if unbiased is not None and correction is not None:
        refuse("correction", "None beside unbiased", correction)
    least = 1 if unbiased is None else int(unbiased)
    return dim, least if correction is None else correction


def _moments(take_root: bool, with_mean: bool) -> Any:
    def make(
        input: Shaped, dim: Any = None, unbiased: Any = None, keepdim: bool = False, correction: Any = None
    ) -> FoldDescriptor:
        dim, correction = corrected(dim, unbiased, correction)
        draft = begun(input, dim)
        variance, center = spread(draft, draft.element("input", input), correction)
        found = (w.sqrt(variance) if take_root else variance, *([center] if with_mean else []))
        return draft.rows(*found, dtype=input.dtype, keepdim=keepdim)

    return make


for _name, _options in {
    "var": (False, False),
    "std": (True, False),
    "var_mean": (False, True),
    "std_mean": (True, True),
}.items():
    recipe(_name, "out0 is the first, out1 the mean" if _options[1] else "")(_moments(*_options))


@recipe("logsumexp")
def logsumexp(input: Shaped, dim: Any = None, keepdim: bool = False) -> FoldDescriptor:
    """-inf where all are."""
    draft = begun(input, dim)
    found = log_of_sum(draft, floats(draft.element("input", input)))
    return draft.rows(found, dtype=input.dtype, keepdim=keepdim)


def log_of_sum(draft: FoldDraft, x: Node, axes: Any = None) -> Node:
    return draft.join("expsum", x, "max", axes) + w.log(draft.join("expsum", x, "sum", axes))


@recipe("trace")
def trace(input: Shaped) -> FoldDescriptor:
    """The sum of the diagonal of a matrix."""
    if input.rank != 2:
        refuse("input", "a matrix", input.shape)
    draft = FoldDraft((min(input.shape),), (0,))
    at = draft.here()[0]
    x, wanted = summand(draft.source("input", input).at([at, at]), input.dtype, None)
    return draft.rows(draft.join("sum", x), dtype=wanted)


@recipe("sum_to_size", WIDE)
def sum_to_size(input: Shaped, *size: Any) -> Any:
    """Sums along the axes in front, and along those that have 1 in size, which stay; a copy where none does."""
    wanted = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (list, tuple)) else tuple(size)
    front = input.rank - len(wanted)
    own = input.shape[max(front, 0) :]
    if front < 0 or any(n not in (1, have) for n, have in zip(wanted, own, strict=True)):
        refuse("size", f"the last of the extents {input.shape}, or 1", wanted)
    ones = [front + i for i, (n, have) in enumerate(zip(wanted, own, strict=True)) if n == 1 and have != 1]
    if wanted and not front and not ones:
        return copied(input)
    draft = FoldDraft(input.shape, [*range(front), *ones])
    x, dtype = summand(draft.element("input", input), input.dtype, None)
    return draft.rows(draft.join("sum", x), dtype=dtype, keepdim=ones)


@recipe("trapezoid trapz")
def trapezoid(y: Shaped, x: Any = None, dx: Any = 1.0, dim: int = -1) -> FoldDescriptor:
    """The sum of the areas between neighbours along an axis. x: their places, of the shape of y or of the axis."""
    axis = axis_of("dim", dim, y.rank)
    if not y.rank:
        refuse("y", "at least one axis", y.shape)
    draft = FoldDraft([max(size - 1, 0) if i == axis else size for i, size in enumerate(y.shape)], (axis,))
    here = draft.here()
    ahead = [place + 1 if i == axis else place for i, place in enumerate(here)]
    source = draft.source("y", y)
    pair = source.at(ahead) + source.at(here)
    if x is None:
        step = draft.number("dx", dx, floats(pair).type)
        return draft.rows(0.5 * (draft.join("sum", pair) * step), dtype=y.dtype)
    if x.shape not in (y.shape, (y.shape[axis],)) or x.dtype != y.dtype:
        refuse("x", f"{y.dtype} of shape {y.shape} or ({y.shape[axis]},)", f"{x.dtype} {x.shape}")
    places = draft.source("x", x)
    apart = (
        places.at(ahead) - places.at(here)
        if x.rank == y.rank and x.shape == y.shape
        else (places.at([ahead[axis]]) - places.at([here[axis]]))
    )
    return draft.rows(0.5 * draft.join("sum", apart * floats(pair)), dtype=y.dtype)
