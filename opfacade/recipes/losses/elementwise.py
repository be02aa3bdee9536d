"""Elementwise losses: a map without a reduction, or a fold over all elements with a reduction."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opfacade.programs import words as w
from opfacade.programs.activations import softplus
from opfacade.programs.expression import Node, constant
from opfacade.recipes._draft import Draft
from opfacade.recipes._folding import FoldDraft, as_float
from opfacade.recipes._pointwise import as_nodes, common, floats
from opfacade.recipes._recipe import add
from opfacade.recipes._tensors import Shaped, broadcast, refuse
from opfacade.recipes.elementwise.functions import xlogy

if TYPE_CHECKING:
    from opfacade.core.descriptor import Args
    from opfacade.recipes._tensors import Scalar


NOTE = 'reduction="none" gives a map, others a fold'
REDUCTIONS = ("none", "mean", "sum")
ALIKE = ("binary_cross_entropy", "binary_cross_entropy_with_logits", "soft_margin_loss")  # no broadcasting of the target
WEIGHTS = ("mse_loss", "l1_loss")  # for these, a mean is divided by the sum of the weights


def _weighted(loss: Node, weight: Any) -> Node:
    return loss if weight is None else loss * weight


def mse(input: Node, target: Node, reduction: str = "mean", weight: Shaped | None = None) -> Node:
    apart = floats(input) - target
    return _weighted(apart * apart, weight)


def l1(input: Node, target: Node, reduction: str = "mean", weight: Shaped | None = None) -> Node:
    return _weighted(w.abs_(input - target), weight)


def smooth_l1(input: Node, target: Node, reduction: str = "mean", beta: Scalar = 1.0) -> Node:
    apart = w.abs_(floats(input) - target)
    return w.select(apart < beta, 0.5 * apart * apart / beta, apart - 0.5 * beta)


def huber(input: Node, target: Node, reduction: str = "mean", delta: Any = 1.0, weight: Shaped | None = None) -> Node:
    apart = w.abs_(floats(input) - target)
    return _weighted(w.select(apart <= delta, 0.5 * apart * apart, delta * (apart - 0.5 * delta)), weight)


def bce(input: Node, target: Node, weight: Shaped | None = None, reduction: str = "mean") -> Node:
    """Logarithms are clamped to at least -100."""
    least = constant(-100.0, input.type)
    yes, no = w.maximum(w.log(floats(input)), least), w.maximum(w.log1p(-input), least)
    return _weighted((target - 1.0) * no - target * yes, weight)


def bce_with_logits(
    input: Node, target: Node, weight: Shaped | None = None, reduction: str = "mean", pos_weight: Any = None
) -> Node:
    factor = 1.0 if pos_weight is None else (pos_weight - 1.0) * target + 1.0
    return _weighted((1.0 - target) * input + softplus(-floats(input)) * factor, weight)


def kl_div(input: Node, target: Node, reduction: str = "mean", log_target: object = False) -> Node:
    if log_target:
        return w.exp(target) * (target - input)
    return xlogy(target, target) - target * input


def poisson_nll(
    input: Node, target: Node, log_input: object = True, full: object = False, eps: Scalar = 1e-8, reduction: str = "mean"
) -> Node:
    """full: add Stirling's approximation for targets above 1."""
    found = w.exp(input) - target * input if log_input else input - target * w.log(input + eps)
    if not full:
        return found
    stirling = target * w.log(target) - target + 0.5 * w.log(target * (2 * math.pi))
    return found + w.select(target > 1.0, stirling, constant(0.0, input.type))


def gaussian_nll(
    input: Node, target: Node, var: Node, full: object = False, eps: Scalar = 1e-6, reduction: str = "mean"
) -> Node:
    wide = w.maximum(var, eps)
    apart = floats(input) - target
    found = 0.5 * (w.log(wide) + apart * apart / wide)
    return found + 0.5 * math.log(2 * math.pi) if full else found


def hinge_embedding(input: Node, target: Node, margin: Scalar = 1.0, reduction: str = "mean") -> Node:
    zero = constant(0.0, floats(input).type)
    near = w.select(w.ne(target, 1.0), w.maximum(margin - input, 0.0), zero)
    return near + w.select(w.ne(target, -1.0), input, zero)


def margin_ranking(input1: Node, input2: Node, target: Node, margin: Scalar = 0.0, reduction: str = "mean") -> Node:
    return w.maximum(-target * (floats(input1) - input2) + margin, 0.0)


def soft_margin(input: Node, target: Node, reduction: str = "mean") -> Node:
    return softplus(-target * floats(input))


LOSSES: dict[str, Callable[..., Node]] = {
    "mse_loss": mse, "l1_loss": l1, "smooth_l1_loss": smooth_l1, "huber_loss": huber, "binary_cross_entropy": bce,
    "binary_cross_entropy_with_logits": bce_with_logits, "kl_div": kl_div, "poisson_nll_loss": poisson_nll,
    "gaussian_nll_loss": gaussian_nll, "hinge_embedding_loss": hinge_embedding, "margin_ranking_loss": margin_ranking,
    "soft_margin_loss": soft_margin,
}  # fmt: skip


def checked(reduction: str, more: tuple[str, ...] = ()) -> str:
    if reduction not in (*REDUCTIONS, *more):
        refuse("reduction", f"one of {', '.join((*REDUCTIONS, *more))}", reduction)
    found: str = reduction
    return found


def _loss(name: str, function: Callable[..., Node]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    def make(*args: Args, **options: object) -> Any:
        given = signature.bind(*args, **options).arguments
        reduction = checked(given.get("reduction", "mean"), ("batchmean",) if name == "kl_div" else ())
        if name == "gaussian_nll_loss":
            given["var"] = _variances(given["input"], given["var"])
        tensors = {one: value for one, value in given.items() if isinstance(value, Shaped)}
        if name in ALIKE and tensors["target"].shape != tensors["input"].shape:
            refuse("target", f"the shape of input, {tensors['input'].shape}", tensors["target"].shape)
        shape = broadcast(one.shape for one in tensors.values())
        draft = Draft(shape) if reduction == "none" else FoldDraft(shape, range(len(shape)))
        nodes = as_nodes(draft, given, common(tensors))
        loss = function(**nodes)
        if not isinstance(draft, FoldDraft):
            return draft.map(loss, dtype=common(tensors))
        weight = nodes.get("weight") if name in WEIGHTS else None
        return draft.rows(_joined(draft, loss, reduction, weight), dtype=common(tensors))

    make.__signature__ = signature  # type: ignore[attr-defined]
    return make


def _variances(input: object, var: object) -> object:
    """One variance per element, or one for all elements along one axis: the last axis if `var` lacks an axis."""
    if not isinstance(input, Shaped) or not isinstance(var, Shaped) or var.shape == input.shape:
        return var
    if var.shape == input.shape[:-1]:
        return Shaped((*var.shape, 1), var.dtype)
    apart = [one for one, size in zip(var.shape, input.shape, strict=False) if one != size]
    if var.rank != input.rank or apart != [1]:
        refuse("var", f"shape {input.shape}, {input.shape[:-1]}, or a size of 1 instead of one size", var.shape)
    return var


def _joined(draft: FoldDraft, loss: Node, reduction: str, weight: Any) -> Node:
    """The sum, or a mean: of elements, weighted, or over the entries of axis 0."""
    total = draft.join("sum", loss)
    if reduction == "sum":
        return total
    if reduction == "batchmean":
        return total / as_float(draft.count(draft.folded[:1]), loss)
    return total / (as_float(draft.count(), loss) if weight is None else draft.join("sum", weight))


for _name, _function in LOSSES.items():
    add(f"nn.functional.{_name}", _loss(_name, _function), NOTE)
