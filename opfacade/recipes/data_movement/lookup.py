"""Elements at indices that are in a tensor. `outside` determines the result of an index out of range: "clamp" reads the nearest
valid index, "wrap" takes the index modulo the size, and a number is the result itself. `OPFACADE_VALIDATE=indices` reports such
an index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant, coord
from opfacade.programs.types import INTEGERS
from opfacade.recipes._draft import Draft
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, axis_of, broadcast, refuse, sizes
from opfacade.recipes.data_movement.indexing import unraveled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opfacade.recipes._tensors import Dims


CLAMPS = "an index out of range reads the nearest valid index, unless `outside` is set"


def index_of(node: Node) -> Node:
    if node.type not in INTEGERS:
        refuse("index", "an integer dtype", node.type)
    return node if node.type == "i64" else w.i64(node)


def _from_end(index: Node, size: Node) -> Node:
    return w.select(index < 0, index + size, index)


@recipe("gather", CLAMPS)
def gather(input: Shaped, dim: int, index: Shaped, sparse_grad: bool = False, outside: object = "clamp") -> MapDescriptor:
    axis = axis_of("dim", dim, input.rank)
    if index.rank != input.rank and input.rank * index.rank:
        refuse("index", f"{input.rank} axes, as input", index.shape)
    most = tuple(n for i, n in enumerate(input.shape) if i != axis)
    if index.numel and any(
        n > have for n, have in zip((n for i, n in enumerate(index.shape) if i != axis), most, strict=False)
    ):
        refuse("index", f"sizes of at most {most} along the axes other than {axis}", index.shape)
    draft = Draft(index.shape)
    source, places = draft.source("input", input, outside), draft.here()
    at = index_of(draft.element("index", index))
    places = [at if i == axis else place for i, place in enumerate(places)] or [at]
    return draft.map(source.at(places[: max(input.rank, 1)], outside), dtype=input.dtype)


@recipe("take_along_dim", CLAMPS)
def take_along_dim(input: Shaped, indices: Shaped, dim: Dims = None, outside: object = "clamp") -> MapDescriptor:
    """Without dim, indices refer to the flattened tensor. Negative indices count from the end."""
    if dim is None:
        return _taken(input, "indices", Shaped((indices.numel,), indices.dtype), outside)
    axis = axis_of("dim", dim, input.rank)
    if indices.rank != input.rank:
        refuse("indices", f"{input.rank} axes, as input", indices.shape)
    shape = [n if i != axis else 1 for i, n in enumerate(input.shape)]
    wide = list(broadcast([shape, [n if i != axis else 1 for i, n in enumerate(indices.shape)]]))
    wide[axis] = indices.shape[axis]
    draft = Draft(wide)
    source, places = draft.source("input", input, outside), draft.here()
    places = [place if input.shape[i] != 1 or i == axis else constant(0, "i64") for i, place in enumerate(places)]
    size = draft.number("size", input.shape[axis], "i64")
    places[axis] = _from_end(index_of(draft.element("indices", indices)), size)
    return draft.map(source.at(places, outside), dtype=input.dtype)


@recipe("index_select", CLAMPS)
def index_select(input: Shaped, dim: int, index: Shaped, outside: object = "clamp") -> MapDescriptor:
    axis = axis_of("dim", dim, input.rank)
    if index.rank > 1:
        refuse("index", "one axis", index.shape)
    draft = Draft([index.numel if i == axis else n for i, n in enumerate(input.shape)])
    source, places = draft.source("input", input, outside), draft.here()
    at = index_of(draft.along("index", Shaped((index.numel,), index.dtype), (axis,) if input.rank else ()))
    places = [at if i == axis else place for i, place in enumerate(places)] or [at]
    return draft.map(source.at(places, outside), dtype=input.dtype)


@recipe("take", CLAMPS)
def take(input: Shaped, index: Shaped, outside: object = "clamp") -> MapDescriptor:
    """Indices refer to the flattened tensor; negative indices count from the end."""
    return _taken(input, "index", index, outside)


def _taken(input: Shaped, name: str, index: Shaped, outside: object) -> MapDescriptor:
    draft = Draft(index.shape)
    source = draft.source("input", input, outside)
    at = _from_end(index_of(draft.element(name, index)), draft.number("count", input.numel, "i64"))
    return draft.map(source.at(unraveled(draft, at, input.shape), outside), dtype=input.dtype)


@recipe("nn.functional.embedding", f"{CLAMPS}; max_norm is refused, because it would change the weights")
def embedding(
    input: Shaped, weight: Shaped, padding_idx: object = None, max_norm: object = None, norm_type: object = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False, outside: object = "clamp",
) -> MapDescriptor:  # fmt: skip
    """input: indices of the rows of weight [V, D]."""
    if max_norm is not None or weight.rank != 2:
        refuse("max_norm" if weight.rank == 2 else "weight", "None, and a weight with 2 axes", (max_norm, weight.shape))
    draft = Draft((*input.shape, weight.shape[1]))
    source = draft.source("weight", weight, outside)
    at = index_of(draft.along("input", input, range(input.rank)))
    return draft.map(source.at([at, coord(input.rank)], outside), dtype=weight.dtype)


@recipe("nn.functional.one_hot", "num_classes is required; otherwise the size would depend on the data")
def one_hot(input: Shaped, num_classes: int = -1) -> MapDescriptor:
    """i64, as in torch; an index out of range gives zeros."""
    if num_classes < 0:
        refuse("num_classes", "a number", num_classes)
    draft = Draft((*input.shape, num_classes))
    here = w.eq(index_of(draft.along("input", input, range(input.rank))), coord(input.rank))
    return draft.map(w.select(here, constant(1, "i64"), constant(0, "i64")))


@recipe("unravel_index", "one output per axis (at most 4): out0, out1 and so on")
def unravel_index(input: Shaped, shape: Sequence[int]) -> MapDescriptor:

    wanted = sizes("shape", shape)
    if not 1 <= len(wanted) <= 4:
        refuse("shape", "1 to 4 sizes", shape)
    draft = Draft(input.shape)
    return draft.map(*unraveled(draft, index_of(draft.element("input", input)), wanted))
