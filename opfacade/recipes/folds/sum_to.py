"""Sums that are not along given axes: trace, sum_to_size and trapezoid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.plans.reduction import FoldDescriptor
from opfacade.recipes._folding import FoldDraft
from opfacade.recipes._pointwise import floats
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, axis_of, refuse
from opfacade.recipes.data_movement.indexing import copied
from opfacade.recipes.folds.reductions import WIDE, summand

if TYPE_CHECKING:
    from collections.abc import Sequence


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
def sum_to_size(input: Shaped, *size: int | Sequence[int]) -> Any:
    """Sums along the leading axes, and along the axes whose target size is 1, which stay; a copy if there are none."""
    wanted = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (list, tuple)) else tuple(size)
    front = input.rank - len(wanted)
    own = input.shape[max(front, 0) :]
    if front < 0 or any(n not in (1, have) for n, have in zip(wanted, own, strict=True)):
        refuse("size", f"the last sizes of {input.shape}, or 1", wanted)
    ones = [front + i for i, (n, have) in enumerate(zip(wanted, own, strict=True)) if n == 1 and have != 1]
    if wanted and not front and not ones:
        return copied(input)
    draft = FoldDraft(input.shape, [*range(front), *ones])
    x, dtype = summand(draft.element("input", input), input.dtype, None)
    return draft.rows(draft.join("sum", x), dtype=dtype, keepdim=ones)


@recipe("trapezoid trapz")
def trapezoid(y: Shaped, x: Any = None, dx: Any = 1.0, dim: int = -1) -> FoldDescriptor:
    """The sum of the areas between neighbouring points along an axis. x: the positions of the points, with the shape of y or of
    the axis."""
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
        refuse("x", f"a tensor of {y.dtype} with shape {y.shape} or ({y.shape[axis]},)", f"{x.dtype} {x.shape}")
    places = draft.source("x", x)
    apart = (
        places.at(ahead) - places.at(here)
        if x.rank == y.rank and x.shape == y.shape
        else (places.at([ahead[axis]]) - places.at([here[axis]]))
    )
    return draft.rows(0.5 * draft.join("sum", apart * floats(pair)), dtype=y.dtype)
