"""Classification losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.programs import words as w
from opfacade.programs.activations import softplus
from opfacade.programs.expression import Node, constant, coord
from opfacade.programs.types import INTEGERS
from opfacade.recipes._draft import Draft, one, zero
from opfacade.recipes._folding import FoldDraft, as_float
from opfacade.recipes._pointwise import common, floats
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, refuse
from opfacade.recipes.data_movement.lookup import index_of
from opfacade.recipes.losses.elementwise import checked

if TYPE_CHECKING:
    from opfacade.recipes._tensors import Scalar


@recipe("nn.functional.nll_loss", 'a map for reduction="none", otherwise a fold')
def nll_loss(
    input: Shaped, target: Shaped, weight: Shaped | None = None, size_average: bool | None = None, ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:  # fmt: skip
    """input: log-probabilities [N, C, ...] or [C]. The loss is 0 if the target is ignore_index. A mean is weighted."""
    axis, every = min(1, input.rank - 1), range(target.rank)
    rows = input.shape[: max(axis, 0)] + input.shape[axis + 1 :]
    if axis < 0 or target.shape not in (rows, rows or (1,)):
        refuse("target", "class indices, with the shape of input without its class axis", target.shape)
    of_classes(weight, input.shape[axis])
    draft = Draft(target.shape) if checked(reduction) == "none" else FoldDraft(target.shape, every)
    source = draft.source("input", input, "clamp")
    at, places = index_of(draft.element("target", target)), draft.here()
    ignored = w.eq(at, draft.number("ignore_index", ignore_index, "i64"))
    factor = one(input.type) if weight is None else draft.source("weight", weight, "clamp").at([at])
    loss = -source.at([*places[: input.rank - 1 and 1], at, *places[1:]])
    loss = w.select(ignored, zero(input.type), loss if weight is None else factor * loss)
    if not isinstance(draft, FoldDraft):
        return draft.map(loss, dtype=input.dtype)
    total = draft.join("sum", loss)
    share = total if reduction == "sum" else total / draft.join("sum", w.select(ignored, zero(input.type), factor))
    return draft.rows(share, dtype=input.dtype)


def of_classes(weight: object, classes: int) -> None:
    """Refuses a weight that has not one number per class: a class without a number would read the nearest one."""
    if weight is not None and (not isinstance(weight, Shaped) or weight.shape != (classes,)):
        refuse("weight", f"None, or a tensor of shape ({classes},), one number per class", getattr(weight, "shape", weight))


@recipe("nn.functional.cross_entropy")
def cross_entropy(
    input: Shaped, target: Shaped, weight: Any = None, size_average: Any = None, ignore_index: int = -100, reduce: Any = None,
    reduction: str = "mean", label_smoothing: Any = 0.0,
) -> Any:  # fmt: skip
    """input: scores [N, C, ...] or [C]. target: class indices (ignore_index gives a loss of 0), or probabilities with the shape
    of input."""
    axis = min(1, input.rank - 1)
    if axis < 0 or (target.shape != input.shape and target.shape != input.shape[:axis] + input.shape[axis + 1 :]):
        refuse("target", "class indices, with the shape of input without its class axis, or probabilities", target.shape)
    of_classes(weight, input.shape[axis])
    draft = FoldDraft(input.shape, (axis,) if checked(reduction) == "none" else range(input.rank))
    entropy = _Entropy(draft, draft.element("input", input), axis, weight)
    smoothing = draft.number("label_smoothing", float(label_smoothing), input.type) if label_smoothing else None
    if target.dtype not in INTEGERS:
        common({"input": input, "target": target})
        loss = entropy.of_shares(draft.element("target", target), smoothing)
        rows = as_float(draft.count([i for i in range(input.rank) if i != axis]), loss)
        return draft.rows(entropy.joined(loss, reduction, rows), dtype=input.dtype)
    axes = [i for i in range(input.rank) if i != axis]
    at = index_of(draft.along("target", target, axes))
    loss, factor = entropy.of_class(at, smoothing)
    used = w.ne(at, draft.number("ignore_index", ignore_index, "i64"))
    loss, factor = (w.select(used, node, zero(input.type)) for node in (loss, factor))
    weight = entropy.total(factor) if reduction == "mean" else factor
    return draft.rows(entropy.joined(loss, reduction, weight), dtype=input.dtype)


class _Entropy:
    """Scores of classes along one axis."""

    def __init__(self, draft: FoldDraft, x: Node, axis: int, weight: Shaped | None) -> None:
        self.draft, self.x, self.axis, self.weight = draft, floats(x), axis, weight
        self.most, total = (draft.join("expsum", x, part, (axis,)) for part in ("max", "sum"))
        self.log = w.log(total)
        self.classes = as_float(draft.count((axis,)), x)

    def of_class(self, at: Node, smoothing: Node | None) -> tuple[Node, Node]:
        """The loss for a class index, and its weight."""
        hit = w.eq(coord(self.axis), at)
        picked = self.draft.join("max", w.select(hit, self.x, constant("-inf", self.x.type)), axes=(self.axis,))
        factor = each = one(self.x.type)
        if self.weight is not None:
            weights = self.draft.source("weight", self.weight, "clamp")
            factor, each = weights.at([at]), weights.at([coord(self.axis)])
        loss = (self.log + (self.most - picked)) * factor
        there = w.and_(w.ge(at, constant(0, "i64")), w.lt(at, self.draft.count((self.axis,))))
        loss = w.select(there, loss, constant("nan", self.x.type))  # an invalid class
        if smoothing is None:
            return loss, factor
        rest = self._sum((self.log + (self.most - self.x)) * each)
        return (1.0 - smoothing) * loss + smoothing / self.classes * rest, factor

    def of_shares(self, target: Node, smoothing: Node | None) -> Node:
        """The loss for class probabilities."""
        if smoothing is not None:
            target = target * (1.0 - smoothing) + smoothing / self.classes
        each = (self.log + (self.most - self.x)) * target
        return self._sum(each if self.weight is None else each * self.draft.along("weight", self.weight, (self.axis,)))

    def joined(self, loss: Node, reduction: str, weight: Node) -> Node:
        """The losses of the rows, their sum, or their mean, which is the sum divided by a weight."""
        if reduction == "none":
            return loss
        total = self.total(loss)
        return total if reduction == "sum" else total / weight

    def total(self, x: Node) -> Node:
        """The sum over rows."""
        rows = tuple(axis for axis in self.draft.folded if axis != self.axis)
        return self.draft.join("sum", x, axes=rows) if rows else x

    def _sum(self, x: Node) -> Node:
        return self.draft.join("sum", x, axes=(self.axis,))


@recipe("nn.functional.multi_margin_loss")
def multi_margin_loss(
    input: Shaped, target: Shaped, p: int = 1, margin: Scalar = 1.0, weight: Shaped | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    """input: scores [N, C] or [C]. The sum over the other classes of max(0, margin - own + other) ^ p, divided by C."""
    if input.rank not in (1, 2) or p not in (1, 2):
        refuse("input", "input [N, C] or [C], and p = 1 or 2", (input.shape, p))
    if target.shape not in (input.shape[:-1], input.shape[:-1] or (1,)):
        refuse("target", f"a class for each row, with shape {input.shape[:-1]}", target.shape)
    of_classes(weight, input.shape[-1])
    axis = input.rank - 1
    draft = FoldDraft(input.shape, (axis,) if checked(reduction) == "none" else range(input.rank))
    at = index_of(draft.along("target", Shaped(input.shape[:axis], target.dtype), range(axis)))
    source, here = draft.source("input", input), draft.here()
    short = w.maximum(draft.number("margin", margin, input.type) - source.at([*here[:-1], at]) + source.at(here), 0.0)
    short = short * short if p == 2 else short
    if weight is not None:
        short = short * draft.source("weight", weight, "clamp").at([at])
    total = draft.join("sum", w.select(w.eq(here[-1], at), zero(input.type), short))
    count = draft.count() if reduction == "mean" else draft.count((axis,))
    return draft.rows(total / as_float(count, short), dtype=input.dtype)


@recipe("nn.functional.multilabel_soft_margin_loss")
def multilabel_soft_margin_loss(
    input: Shaped,
    target: Shaped,
    weight: Shaped | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """The mean over the last axis of the logistic loss of each label."""
    dtype = common({name: one for name, one in (("input", input), ("target", target), ("weight", weight)) if one is not None})
    if input.shape != target.shape or not input.rank:
        refuse("target", f"the shape of input, {input.shape}, with at least one axis", target.shape)
    draft = FoldDraft(input.shape, (input.rank - 1,) if checked(reduction) == "none" else range(input.rank))
    x, y = floats(draft.element("input", input)), draft.element("target", target)
    loss = y * softplus(-x) + (1.0 - y) * softplus(x)
    loss = loss if weight is None else loss * draft.element("weight", weight)
    count = draft.count() if reduction == "mean" else draft.count((input.rank - 1,))
    return draft.rows(draft.join("sum", loss) / as_float(count, x), dtype=dtype)


@recipe("nn.functional.multilabel_margin_loss")
def multilabel_margin_loss(
    input: Shaped, target: Shaped, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> Any:
    """input: scores [N, C] or [C]. target: labels with the same shape; the first negative label ends the list."""
    if input.rank not in (1, 2) or target.shape != input.shape:
        refuse("target", "labels with the shape of input, [N, C] or [C]", (input.shape, target.shape))
    rank, classes = input.rank, input.shape[-1]
    draft = FoldDraft((*input.shape, classes), range(rank - 1 if checked(reduction) == "none" else 0, rank + 1))
    source, own, label = draft.source("input", input), draft.here(range(rank)), coord(rank)
    at = index_of(draft.along("target", target, (*range(rank - 1), rank)))
    end = draft.join("min", w.select(at < 0, label, draft.count((rank,))), axes=(rank,))
    given = label < end
    listed = draft.join("any", w.and_(given, w.eq(at, own[-1])), axes=(rank,))
    short = w.maximum(1.0 - source.at([*own[:-1], at]) + source.at(own), 0.0)
    total = draft.join("sum", w.select(w.and_(given, w.not_(listed)), short, zero(input.type)))
    count = draft.count(range(rank)) if reduction == "mean" else draft.count((rank,))
    return draft.rows(total / as_float(count, floats(short)), dtype=input.dtype)
