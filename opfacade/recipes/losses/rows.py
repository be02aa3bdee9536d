"""Losses of pairs and triples of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node
from opfacade.recipes._draft import zero
from opfacade.recipes._folding import FoldDraft, as_float
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, refuse
from opfacade.recipes.folds.vector_norms import length, pair
from opfacade.recipes.losses.elementwise import checked

if TYPE_CHECKING:
    from opfacade.recipes._tensors import Scalar


LEAST = 1e-12  # torch's eps for squared lengths


def _rows(names: dict[str, Shaped], reduction: str) -> FoldDraft:
    """A fold along the last axis, or with a reduction along all axes."""
    first, shapes = next(iter(names)), {one.shape for one in names.values()}
    rank = len(names[first].shape)
    if len(shapes) != 1 or rank not in (1, 2):
        refuse(first, "tensors with the same shape, [N, D] or [D]", {name: one.shape for name, one in names.items()})
    return FoldDraft(names[first].shape, (rank - 1,) if checked(reduction) == "none" else range(rank))


def _reduced(draft: FoldDraft, loss: Node, reduction: str) -> Node:
    """The mean or sum of the losses of rows."""
    axis = len(draft.shape) - 1
    if reduction == "none" or axis == 0:
        return loss
    total = draft.join("sum", loss, axes=range(axis))
    return total if reduction == "sum" else total / as_float(draft.count(range(axis)), loss)


@recipe("nn.functional.cosine_embedding_loss")
def cosine_embedding_loss(
    input1: Shaped, input2: Shaped, target: Shaped, margin: Scalar = 0.0, size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> FoldDescriptor:  # fmt: skip
    """1 - cosine if the target is 1; max(0, cosine - margin) if it is -1; otherwise 0."""
    draft = _rows({"input1": input1, "input2": input2}, reduction)
    a, b = pair(draft, {"input1": input1, "input2": input2})
    if target.shape != input1.shape[:-1]:
        refuse("target", f"one number per row, with shape {input1.shape[:-1]}", target.shape)
    y, last = draft.along("target", target, range(target.rank)), (len(draft.shape) - 1,)
    products = [draft.join("sum", one, axes=last) for one in (a * b, a * a, b * b)]
    cosine = products[0] / w.sqrt((products[1] + LEAST) * (products[2] + LEAST))
    apart = w.select(w.eq(y, -1), w.maximum(cosine - draft.number("margin", margin, a.type), 0.0), zero(a.type))
    loss = w.select(w.eq(y, 1), 1.0 - cosine, apart)
    return draft.rows(_reduced(draft, loss, reduction), dtype=input1.dtype)


@recipe("nn.functional.triplet_margin_loss")
def triplet_margin_loss(
    anchor: Shaped, positive: Shaped, negative: Shaped, margin: Scalar = 1.0, p: Scalar = 2, eps: Scalar = 1e-6,
    swap: bool = False,
    size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
) -> FoldDescriptor:  # fmt: skip
    """max(0, margin + distance to positive - distance to negative). swap: use the distance from positive to negative if it is
    smaller."""
    given = {"anchor": anchor, "positive": positive, "negative": negative}
    draft = _rows(given, reduction)
    a, b, c = pair(draft, given)
    last, least = (len(draft.shape) - 1,), draft.number("eps", eps, a.type)
    near, far = (length(draft, a - other + least, p, last) for other in (b, c))
    if swap:
        far = w.minimum(far, length(draft, b - c + least, p, last))
    loss = w.maximum(draft.number("margin", margin, a.type) + near - far, 0.0)
    return draft.rows(_reduced(draft, loss, reduction), dtype=anchor.dtype)


@recipe("nn.functional.triplet_margin_with_distance_loss", "the distance is always pairwise_distance")
def triplet_margin_with_distance_loss(
    anchor: Shaped, positive: Shaped, negative: Shaped, distance_function: object = None, margin: Scalar = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> FoldDescriptor:  # fmt: skip
    if distance_function is not None:
        refuse("distance_function", "None: pairwise_distance", distance_function)
    found: FoldDescriptor = triplet_margin_loss.make(anchor, positive, negative, margin, swap=swap, reduction=reduction)
    return found
