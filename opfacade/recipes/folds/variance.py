"""Variances and standard deviations, of all elements or of those where a mask is true."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node
from opfacade.recipes._draft import zero
from opfacade.recipes._folding import FoldDraft, begun
from opfacade.recipes._pointwise import floats
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, refuse
from opfacade.recipes.folds.reductions import hidden, number_of

if TYPE_CHECKING:
    from opfacade.recipes._tensors import Dims, Scalar


def spread(draft: FoldDraft, x: Node, correction: Any, there: Node | None = None) -> tuple[Node, Node]:
    """The variance and the mean of the included elements.

    correction: is subtracted from their number to get the divisor, which is at least 0.
    """
    count, none = number_of(draft, floats(x), there), zero(x.type)
    mean = draft.join("sum", hidden(x, there, none)) / count
    total = draft.join("sum", hidden((x - mean) * (x - mean), there, none))
    return total / w.maximum(count - draft.number("correction", correction, x.type), 0.0), mean


def corrected(dim: Any, unbiased: Any, correction: Any) -> tuple[Any, Any]:
    """Returns dim and correction; in var(x, True), the second argument is unbiased."""
    dim, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
    if unbiased is not None and correction is not None:
        refuse("correction", "None beside unbiased", correction)
    least = 1 if unbiased is None else int(unbiased)
    return dim, least if correction is None else correction


def _moments(take_root: bool, with_mean: bool) -> Any:
    def make(
        input: Shaped, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, correction: Scalar | None = None
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
