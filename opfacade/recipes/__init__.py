"""Recipes: functions with the names and the arguments of torch's operators, that give the descriptor of what they compute.

    from opfacade import recipes
    from opfacade.recipes import shaped

    x = shaped(4096, 11008, dtype="bf16")
    plan = Plan.select(recipes.silu(x))
    plan = Plan.select(recipes.softmax(x, -1))

A recipe gives the descriptor of a map, of a fold where elements are joined, or of a product of matrices. It takes shapes and
dtypes: a `Shaped`, or any tensor, which is not read. A number among the arguments is a number of the plan. Nothing is promoted:
tensors have one dtype. An input that is expanded lacks the axes along which it is expanded. docs/ops/recipes.md lists all
recipes, and the operators that have none with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.recipes import (  # noqa: F401  each adds its recipes
    activations,
    arithmetic,
    casts,
    channel_norms,
    choices,
    class_losses,
    comparisons,
    concatenation,
    contractions,
    creation,
    diffusion,
    draws,
    dropouts,
    float_bits,
    functions,
    images,
    indexing,
    lengths,
    lookup,
    losses,
    masked,
    matmuls,
    matrices,
    min_max,
    norms,
    padding,
    products,
    reductions,
    row_losses,
    scaled_products,
    slicing,
    softmaxes,
    special,
    stacks,
    sum_to,
    variance,
    windows,
)
from opfacade.recipes._recipe import RECIPES, Recipe
from opfacade.recipes._tensors import Shaped, shaped
from opfacade.recipes.waiting import reason_of

__all__ = ["RECIPES", "Recipe", "Shaped", "shaped"]


def __dir__() -> list[str]:
    return sorted([*__all__, *RECIPES])


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...

else:

    def __getattr__(name: str) -> Recipe[Any]:
        found = RECIPES.get(name)
        if found is None:
            why = reason_of(name) or "not an operator of torch's tests"
            raise AttributeError(f"no recipe {name!r} ({why}): docs/ops/recipes.md lists all")
        return found
