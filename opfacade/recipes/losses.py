"""Losses of elements, without a reduction; with one they wait for folds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from opfacade.programs import words as w
from opfacade.programs.activations import softplus
from opfacade.programs.expression import Node, constant
from opfacade.recipes._pointwise import floats, pointwise
from opfacade.recipes._recipe import add
from opfacade.recipes._tensors import refuse
from opfacade.recipes.functions import xlogy

NOTE = 'reduction="none"; others wait for folds'


def unreduced(reduction: Any) -> None:
    if reduction != "none":
        refuse("reduction", '"none"', reduction, "Sums and means of losses are folds.")


def _weighted(loss: Node, weight: Any) -> Node:
    return loss if weight is None else loss * weight


def mse(input: Node, target: Node, reduction: Any = "mean", weight: Any = None) -> Node:
    unreduced(reduction)
    apart = floats(input) - target
    return _weighted(apart * apart, weight)


def l1(input: Node, target: Node, reduction: Any = "mean", weight: Any = None) -> Node:
    unreduced(reduction)
    return _weighted(w.abs_(input - target), weight)


def smooth_l1(input: Node, target: Node, reduction: Any = "mean", beta: Any = 1.0) -> Node:
    unreduced(reduction)
    apart = w.abs_(floats(input) - target)
    return w.select(apart < beta, 0.5 * apart * apart / beta, apart - 0.5 * beta)


def huber(input: Node, target: Node, reduction: Any = "mean", delta: Any = 1.0, weight: Any = None) -> Node:
    unreduced(reduction)
    apart = w.abs_(floats(input) - target)
    return _weighted(w.select(apart <= delta, 0.5 * apart * apart, delta * (apart - 0.5 * delta)), weight)


def bce(input: Node, target: Node, weight: Any = None, reduction: Any = "mean") -> Node:
    """Logarithms below -100 count as -100."""
    unreduced(reduction)
    least = constant(-100.0, input.type)
    yes, no = w.maximum(w.log(floats(input)), least), w.maximum(w.log1p(-input), least)
    return _weighted((target - 1.0) * no - target * yes, weight)


def bce_with_logits(input: Node, target: Node, weight: Any = None, reduction: Any = "mean", pos_weight: Any = None) -> Node:
    unreduced(reduction)
    factor = 1.0 if pos_weight is None else (pos_weight - 1.0) * target + 1.0
    return _weighted((1.0 - target) * input + softplus(-floats(input)) * factor, weight)


def kl_div(input: Node, target: Node, reduction: Any = "mean", log_target: Any = False) -> Node:
    unreduced(reduction)
    if log_target:
        return w.exp(target) * (target - input)
    return xlogy(target, target) - target * input


def poisson_nll(
    input: Node, target: Node, log_input: Any = True, full: Any = False, eps: Any = 1e-8, reduction: Any = "mean"
) -> Node:
    """full: with Stirling's approximation for targets above 1."""
    unreduced(reduction)
    found = w.exp(input) - target * input if log_input else input - target * w.log(input + eps)
    if not full:
        return found
    stirling = target * w.log(target) - target + 0.5 * w.log(target * (2 * math.pi))
    return found + w.select(target > 1.0, stirling, constant(0.0, input.type))


def gaussian_nll(input: Node, target: Node, var: Node, full: Any = False, eps: Any = 1e-6, reduction: Any = "mean") -> Node:
    unreduced(reduction)
    wide = w.maximum(var, eps)
    apart = floats(input) - target
    found = 0.5 * (w.log(wide) + apart * apart / wide)
    return found + 0.5 * math.log(2 * math.pi) if full else found


def hinge_embedding(input: Node, target: Node, margin: Any = 1.0, reduction: Any = "mean") -> Node:
    unreduced(reduction)
    zero = constant(0.0, floats(input).type)
    near = w.select(w.ne(target, 1.0), w.maximum(margin - input, 0.0), zero)
    return near + w.select(w.ne(target, -1.0), input, zero)


def margin_ranking(input1: Node, input2: Node, target: Node, margin: Any = 0.0, reduction: Any = "mean") -> Node:
    unreduced(reduction)
    return w.maximum(-target * (floats(input1) - input2) + margin, 0.0)


def soft_margin(input: Node, target: Node, reduction: Any = "mean") -> Node:
    unreduced(reduction)
    return softplus(-target * floats(input))


LOSSES: dict[str, Callable[..., Node]] = {
    "mse_loss": mse, "l1_loss": l1, "smooth_l1_loss": smooth_l1, "huber_loss": huber, "binary_cross_entropy": bce,
    "binary_cross_entropy_with_logits": bce_with_logits, "kl_div": kl_div, "poisson_nll_loss": poisson_nll,
    "gaussian_nll_loss": gaussian_nll, "hinge_embedding_loss": hinge_embedding, "margin_ranking_loss": margin_ranking,
    "soft_margin_loss": soft_margin,
}  # fmt: skip

for _name, _loss in LOSSES.items():
    add(f"nn.functional.{_name}", pointwise(_loss), NOTE)
