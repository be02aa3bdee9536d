"""Recipes: functions with the names and arguments of torch's operators, which return descriptors of the computation.

    from opfacade import recipes
    from opfacade.recipes import shaped

    x = shaped(4096, 11008, dtype="bf16")
    plan = Plan.select(recipes.silu(x))
    plan = Plan.select(recipes.softmax(x, -1))

A recipe returns the descriptor of a map, of a fold (if the operator reduces elements), or of a matrix product. Its tensor
arguments are `Shaped` objects or tensors, of which only shape and dtype are read. A scalar argument is stored in the plan.
There is no type promotion: all tensors have the same dtype. An expanded input lacks the axes along which it is expanded.
docs/ops/recipes.md lists all recipes, and for each operator without a recipe the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.recipes._recipe import RECIPES, Recipe
from opfacade.recipes._tensors import Shaped, shaped

# Each module adds its recipes.
from opfacade.recipes.creation import draws, positions, windows  # noqa: F401
from opfacade.recipes.data_movement import (  # noqa: F401
    concatenation,
    images,
    indexing,
    lookup,
    padding,
    slicing,
    stacks,
    triangles,
)
from opfacade.recipes.elementwise import (  # noqa: F401
    activations,
    arithmetic,
    casts,
    choices,
    comparisons,
    dropouts,
    float_bits,
    functions,
    special,
)
from opfacade.recipes.folds import (  # noqa: F401
    channel_norms,
    diffusion,
    dot_products,
    layer_norms,
    masked,
    min_max,
    reductions,
    softmaxes,
    sum_to,
    variance,
    vector_norms,
)
from opfacade.recipes.losses import classification, elementwise, rows  # noqa: F401
from opfacade.recipes.products import contractions, grouped, matmuls, scaled  # noqa: F401
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
            raise AttributeError(f"no recipe {name!r} ({why}): docs/ops/recipes.md lists all recipes")
        return found
