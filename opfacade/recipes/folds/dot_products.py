"""Dot products, covariances, and comparisons of whole tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, apply, constant, coord, extent
from opfacade.recipes._folding import FoldDraft, as_float
from opfacade.recipes._pointwise import common, floats
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, axis_of, broadcast, refuse
from opfacade.recipes.data_movement.lookup import index_of
from opfacade.recipes.elementwise.comparisons import isclose

if TYPE_CHECKING:
    from opfacade.recipes._tensors import Scalar


LIBRARY = "not meant for large matrices; use a matrix product"


@recipe("linalg.vecdot")
def vecdot(x: Shaped, y: Shaped, dim: int = -1) -> FoldDescriptor:
    common({"x": x, "y": y})
    shape = broadcast([x.shape, y.shape])
    draft = FoldDraft(shape, [axis_of("dim", dim, len(shape))] if shape else [])
    return draft.rows(draft.join("sum", draft.element("x", x) * draft.element("y", y)), dtype=x.dtype)


def _dot(name: str, input: Shaped, other: Shaped) -> FoldDescriptor:
    common({"input": input, name: other})
    if input.rank != 1 or other.shape != input.shape:
        refuse(name, "two tensors with one axis", (input.shape, other.shape))
    draft = FoldDraft(input.shape, (0,))
    return draft.rows(draft.join("sum", draft.element("input", input) * draft.element(name, other)), dtype=input.dtype)


@recipe("dot")
def dot(input: Shaped, tensor: Shaped) -> FoldDescriptor:
    return _dot("tensor", input, tensor)


@recipe("vdot")
def vdot(input: Shaped, other: Shaped) -> FoldDescriptor:
    return _dot("other", input, other)


@recipe("inner", LIBRARY)
def inner(input: Shaped, other: Shaped) -> FoldDescriptor:
    """Dot products along the last axes of both inputs."""
    common({"input": input, "other": other})
    if not input.rank or not other.rank or input.shape[-1] != other.shape[-1]:
        refuse("other", "a last axis with the size of that of input", (input.shape, other.shape))
    outer = len(input.shape) - 1
    draft = FoldDraft((*input.shape[:-1], *other.shape), (outer + other.rank - 1,))
    a = draft.along("input", input, (*range(outer), outer + other.rank - 1))
    b = draft.along("other", other, range(outer, outer + other.rank))
    return draft.rows(draft.join("sum", a * b), dtype=input.dtype)


@recipe("nn.functional.bilinear", LIBRARY)
def bilinear(input1: Shaped, input2: Shaped, weight: Shaped, bias: Shaped | None = None) -> FoldDescriptor:
    """The sum over i and j of input1 [..., I] * weight [O, I, J] * input2 [..., J], plus bias [O]."""
    given = {"input1": input1, "input2": input2, "weight": weight} | ({} if bias is None else {"bias": bias})
    common(given)
    n = input1.rank - 1
    if weight.rank != 3 or input1.shape != (*input2.shape[:-1], weight.shape[1]) or input2.shape[-1] != weight.shape[2]:
        refuse("weight", "shape [O, I, J], for inputs [..., I] and [..., J]", {name: one.shape for name, one in given.items()})
    draft = FoldDraft((*input1.shape[:-1], *weight.shape), (n + 1, n + 2))
    rows = range(n)
    a, b = draft.along("input1", input1, (*rows, n + 1)), draft.along("input2", input2, (*rows, n + 2))
    found = draft.join("sum", a * draft.along("weight", weight, (n, n + 1, n + 2)) * b)
    return draft.rows(found if bias is None else found + draft.along("bias", bias, (n,)), dtype=input1.dtype)


def _covariances(input: Shaped) -> tuple[FoldDraft, list[Node]]:
    """The deviations of two variables from their means at each observation. Variables are the rows of a matrix; a single
    variable has no axis."""
    if input.rank > 2:
        refuse("input", "[V, N] for several variables, or [N] for one", input.shape)
    count = input.shape[-1] if input.rank else 1
    kept = (input.shape[0], input.shape[0]) if input.rank == 2 and input.shape[0] != 1 else ()
    draft = FoldDraft((*kept, count), (len(kept),))
    source, last = draft.source("input", input), coord(len(kept))
    parts = []
    for i in (0, 1):
        row = coord(i) if kept else constant(0, "i64")
        x = floats(source.at([row, last] if input.rank == 2 else [last]))
        parts.append(x - draft.join("sum", x) / as_float(draft.count(), x))
    return draft, parts


@recipe("cov", "without weights")
def cov(input: Shaped, correction: Any = 1, fweights: Any = None, aweights: Any = None) -> FoldDescriptor:
    if fweights is not None or aweights is not None:
        refuse("fweights" if fweights is not None else "aweights", "None", "weights")
    draft, (a, b) = _covariances(input)
    count = w.maximum(as_float(draft.count(), a) - draft.number("correction", correction, a.type), 0.0)
    return draft.rows(draft.join("sum", a * b) / count, dtype=input.dtype)


@recipe("corrcoef")
def corrcoef(input: Shaped) -> FoldDescriptor:
    """Covariances divided by both standard deviations, clamped to -1 .. 1."""
    draft, (a, b) = _covariances(input)
    roots = [w.sqrt(draft.join("sum", one * one)) for one in (a, b)]
    found = draft.join("sum", a * b) / roots[0] / roots[1]
    return draft.rows(w.minimum(w.maximum(found, -1.0), 1.0), dtype=input.dtype)


@recipe("equal", "a bool on the device; both tensors have the same shape")
def equal(input: Shaped, other: Shaped) -> FoldDescriptor:
    common({"input": input, "other": other})
    if input.shape != other.shape:
        refuse("other", f"the shape of input, {input.shape}", other.shape)
    draft = FoldDraft(input.shape, range(input.rank))
    a, b = (apply("u8", x) if x.type == "bool" else x for x in (draft.element("input", input), draft.element("other", other)))
    return draft.rows(draft.join("all", w.eq(a, b)))


@recipe("allclose", "a bool on the device")
def allclose(input: Shaped, other: Shaped, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> FoldDescriptor:
    common({"input": input, "other": other})
    shape = broadcast([input.shape, other.shape])
    draft = FoldDraft(shape, range(len(shape)))
    a, b = draft.element("input", input), draft.element("other", other)
    near, apart = (draft.number(name, value, floats(a).type) for name, value in (("rtol", rtol), ("atol", atol)))
    return draft.rows(draft.join("all", isclose(a, b, near, apart, equal_nan)))


@recipe("isin", "compares every element with every test element")
def isin(elements: Shaped, test_elements: Shaped, assume_unique: bool = False, invert: bool = False) -> FoldDescriptor:
    """assume_unique has no effect."""
    common({"elements": elements, "test_elements": test_elements})
    rank = elements.rank
    draft = FoldDraft((*elements.shape, test_elements.numel), (rank,))
    x = draft.along("elements", elements, range(rank))
    y = draft.along("test_elements", Shaped((test_elements.numel,), test_elements.dtype), (rank,))
    found = draft.join("any", w.eq(x, y) if x.type != "bool" else w.not_(w.xor(x, y)))
    return draft.rows(w.not_(found) if invert else found)


@recipe("index_fill", "compares every position with every index")
def index_fill(input: Shaped, dim: int, index: Shaped, value: Scalar) -> FoldDescriptor:
    """value: a number, or a tensor with one element. Negative indices count from the end."""
    axis, rank = axis_of("dim", dim, input.rank), input.rank
    if index.rank > 1:
        refuse("index", "one axis", index.shape)
    draft = FoldDraft((*input.shape, index.numel), (rank,))
    x = draft.along("input", input, range(rank))
    at = index_of(draft.along("index", Shaped((index.numel,), index.dtype), (rank,)))
    size, here = (extent(axis), coord(axis)) if rank else (constant(1, "i64"), constant(0, "i64"))
    hit = draft.join("any", w.eq(w.select(at < 0, at + size, at), here))
    if isinstance(value, Shaped):
        common({"input": input, "value": value})
        filled = draft.along("value", Shaped((), value.dtype), ())
    else:
        filled = draft.number("value", value, x.type)
    return draft.rows(w.select(hit, filled, x), dtype=input.dtype)
