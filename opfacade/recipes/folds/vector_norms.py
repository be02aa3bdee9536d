"""Vector norms, distances and normalisation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, apply
from opfacade.recipes._draft import one
from opfacade.recipes._folding import FoldDraft, begun, cast
from opfacade.recipes._pointwise import common, floats
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, axes_of, axis_of, broadcast, refuse

if TYPE_CHECKING:
    from opfacade.recipes._tensors import AnyDType, Dims, Scalar


def length(draft: FoldDraft, x: Node, ord: Any, axes: Any = None) -> Node:
    """The norm of x along the folded axes. ord: 0 counts the nonzero elements; inf and -inf give the largest and smallest
    absolute value; any other number is stored in the plan."""
    if not isinstance(ord, (int, float)) or isinstance(ord, bool) or math.isnan(ord):
        refuse("ord", "a number, inf or -inf", ord)
    size = w.abs_(floats(x))
    if math.isinf(ord):
        return draft.join("max" if ord > 0 else "min", size, axes=axes)
    if ord == 0:
        return draft.join("sum", apply(x.type, w.ne(x, 0.0)), axes=axes)
    if ord == 1:
        return draft.join("sum", size, axes=axes)
    if ord == 2:
        return w.sqrt(draft.join("sum", x * x, axes=axes))
    power = draft.number("ord", float(ord), x.type)
    return w.pow(draft.join("sum", w.pow(size, power), axes=axes), 1.0 / power)


def _vector_norm(input: Shaped, ord: Any, dim: Any, keepdim: bool, dtype: Any) -> FoldDescriptor:
    draft = begun(input, dim)
    x, wanted = cast(draft.element("input", input), input.dtype, dtype)
    return draft.rows(length(draft, x, ord), dtype=wanted, keepdim=keepdim)


@recipe("linalg.vector_norm", "ord must be a number")
def vector_norm(
    input: Shaped, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: AnyDType | None = None
) -> FoldDescriptor:
    return _vector_norm(input, ord, dim, keepdim, dtype)


@recipe("norm", 'p must be a number or "fro"')
def norm(
    input: Shaped, p: Scalar | str | None = "fro", dim: Any = None, keepdim: bool = False, dtype: AnyDType | None = None
) -> FoldDescriptor:
    if isinstance(p, str) and p != "fro":
        refuse("p", 'a number or "fro"', p, "Norms of singular values are not supported.")
    return _vector_norm(input, 2 if p in ("fro", None) else p, dim, keepdim, dtype)


@recipe("linalg.norm", "norms of singular values are not supported")
def linalg_norm(
    input: Shaped, ord: Any = None, dim: Any = None, keepdim: bool = False, dtype: AnyDType | None = None
) -> FoldDescriptor:
    axes = input.rank if dim is None else len(axes_of("dim", dim, input.rank))
    if ord is None:
        return _vector_norm(input, 2, dim, keepdim, dtype)
    if axes == 2:
        return _matrix_norm(input, ord, dim or (-2, -1), keepdim, dtype)
    if axes != 1 or isinstance(ord, str):
        refuse("ord", "None, or a number for one axis", (ord, dim))
    return _vector_norm(input, ord, dim, keepdim, dtype)


@recipe("linalg.matrix_norm", "norms of singular values are not supported")
def matrix_norm(
    input: Shaped, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, dtype: AnyDType | None = None
) -> FoldDescriptor:
    return _matrix_norm(input, ord, dim, keepdim, dtype)


def _matrix_norm(input: Shaped, ord: Any, dim: Any, keepdim: bool, dtype: Any) -> FoldDescriptor:
    axes = axes_of("dim", dim, input.rank)
    if ord == "fro" and len(axes) == 2:
        return _vector_norm(input, 2, dim, keepdim, dtype)
    if ord not in (1, -1, math.inf, -math.inf) or isinstance(ord, bool) or len(set(axes)) != 2:
        refuse("ord", '"fro", 1, -1, inf or -inf, and two axes', (ord, dim))
    draft = begun(input, dim)
    x, wanted = cast(draft.element("input", input), input.dtype, dtype)
    joined, others = axes if abs(ord) == 1 else reversed(axes)  # order 1: sums of columns
    sums = draft.join("sum", w.abs_(floats(x)), axes=(joined,))
    return draft.rows(draft.join("max" if ord > 0 else "min", sums, axes=(others,)), dtype=wanted, keepdim=keepdim)


def pair(draft: FoldDraft, names: dict[str, Shaped]) -> list[Node]:
    common(names)
    return [floats(draft.element(name, one)) for name, one in names.items()]


@recipe("dist")
def dist(input: Shaped, other: Shaped, p: Scalar = 2) -> FoldDescriptor:
    """The norm of the difference over all elements."""
    shape = broadcast([input.shape, other.shape])
    draft = FoldDraft(shape, range(len(shape)))
    a, b = pair(draft, {"input": input, "other": other})
    return draft.rows(length(draft, a - b, p), dtype=input.dtype)


@recipe("nn.functional.pairwise_distance")
def pairwise_distance(x1: Shaped, x2: Shaped, p: Scalar = 2.0, eps: Scalar = 1e-6, keepdim: bool = False) -> FoldDescriptor:
    """The norm of x1 - x2 + eps along the last axis."""
    shape = broadcast([x1.shape, x2.shape])
    draft = FoldDraft(shape, [len(shape) - 1] if shape else [])
    a, b = pair(draft, {"x1": x1, "x2": x2})
    found = length(draft, a - b + draft.number("eps", eps, a.type), p)
    return draft.rows(found, dtype=x1.dtype, keepdim=keepdim)


@recipe("cdist", "always computed from differences, never by a matrix product")
def cdist(x1: Shaped, x2: Shaped, p: Scalar = 2.0, compute_mode: object = None) -> FoldDescriptor:
    """The distance from each row of x1 [..., P, M] to each row of x2 [..., R, M]: [..., P, R]."""
    common({"x1": x1, "x2": x2})
    if min(x1.rank, x2.rank) < 2 or x1.shape[-1] != x2.shape[-1]:
        refuse("x2", "rows with the length of the rows of x1", x2.shape)
    batch = broadcast([x1.shape[:-2], x2.shape[:-2]])
    rank = len(batch)
    draft = FoldDraft((*batch, x1.shape[-2], x2.shape[-2], x1.shape[-1]), (rank + 2,))
    rows = []
    for name, given, row in (("x1", x1, rank), ("x2", x2, rank + 1)):
        outer = given.shape[:-2]
        held = [axis for axis, n in enumerate(outer, rank - len(outer)) if n == batch[axis]]
        sizes = [batch[axis] for axis in held]
        rows.append(draft.along(name, Shaped((*sizes, *given.shape[-2:]), given.dtype), (*held, row, rank + 2)))
    return draft.rows(length(draft, floats(rows[0]) - rows[1], p), dtype=x1.dtype)


@recipe("nn.functional.cosine_similarity")
def cosine_similarity(x1: Shaped, x2: Shaped, dim: int = 1, eps: Scalar = 1e-8) -> FoldDescriptor:
    """The dot product of the vectors divided by the product of their norms; each norm is at least eps."""
    shape = broadcast([x1.shape, x2.shape])
    draft = FoldDraft(shape, [axis_of("dim", dim, len(shape))] if shape else [])
    a, b = pair(draft, {"x1": x1, "x2": x2})
    least = draft.number("eps", eps, a.type)
    sizes = [w.maximum(length(draft, one, 2), least) for one in (a, b)]
    return draft.rows(draft.join("sum", a * b) / (sizes[0] * sizes[1]), dtype=x1.dtype)


@recipe("nn.functional.normalize")
def normalize(input: Shaped, p: Scalar = 2.0, dim: Dims = 1, eps: Scalar = 1e-12) -> FoldDescriptor:
    """The input divided by its norm along dim, which is at least eps."""
    draft = begun(input, dim)
    x = draft.element("input", input)
    size = length(draft, x, p)
    return draft.elements(x / w.maximum(size, draft.number("eps", eps, x.type)), dtype=input.dtype)


@recipe("renorm")
def renorm(input: Shaped, p: Scalar | str | None, dim: int, maxnorm: Any) -> FoldDescriptor:
    """Each slice along dim whose norm exceeds maxnorm is scaled to the norm maxnorm."""
    axis = axis_of("dim", dim, input.rank)
    if input.rank < 2:
        refuse("input", "at least 2 axes", input.shape)
    draft = FoldDraft(input.shape, [i for i in range(input.rank) if i != axis])
    x = draft.element("input", input)
    size, most = length(draft, x, p), draft.number("maxnorm", maxnorm, floats(x).type)
    return draft.elements(x * w.select(size > most, most / (size + 1e-7), one(x.type)), dtype=input.dtype)
