"""Router: how rows choose experts; common fields of the op `route` and of a layer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from opfacade.core.model import Single, Size, Written, contradiction


class Routing(Written):
    """Fields of a choice of experts; RouteDescriptor says what they mean."""

    dtype: Literal["f32", "bf16", "f16"] = Field(description="Element type of logits.")
    score: Literal["softmax", "softmax_chosen", "sigmoid", "sqrt_softplus"] = Field(
        default="softmax", description="Function that converts the logits z to scores."
    )
    bias: bool = Field(default=False, description="Whether the operand bias is added to the logits.")
    correction: bool = Field(
        default=False,
        description="Whether the operand correction is added to the scores for the choice, but not to the weights.",
    )
    groups: Size = Field(default=1, description="Number of groups of experts, which have equal sizes.")
    top_groups: Size = Field(default=1, description="Number of groups from which experts are chosen.")
    group_score: Literal["max", "top2"] = Field(
        default="max", description="Score of a group: its largest key, or the sum of its two largest keys."
    )
    renormalise: bool = Field(default=False, description="Whether weights are divided by their sum.")
    scale: Single = Field(default=1.0, description="Factor of all weights.")

    @classmethod
    def routing(cls) -> tuple[str, ...]:
        """The names of the router's fields."""
        return tuple(Routing.model_fields)


class Router(Routing):
    """The router of a layer: its fields are those of RouteDescriptor."""


def refuse_choice(routing: Routing, experts: int, top_k: int, path: str = "") -> None:
    """Raises if top_k experts cannot be chosen. path: the path of the router in the descriptor."""
    if experts % routing.groups:
        raise contradiction(f"{path}groups", f"a divisor of {experts} experts", routing.groups)
    if routing.top_groups > routing.groups:
        raise contradiction(f"{path}top_groups", f"at most {routing.groups} groups", routing.top_groups)
    most = experts // routing.groups * routing.top_groups
    if top_k > most:
        raise contradiction("top_k", f"at most {most}, the number of experts that can be chosen", top_k)
    if routing.score == "softmax_chosen" and routing.correction:
        raise contradiction(f"{path}correction", "False with softmax_chosen, which chooses by logits", True)
