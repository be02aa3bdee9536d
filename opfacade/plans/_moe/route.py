"""Routing: computes the experts of each row and their weights from the logits of a router."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Args
from opfacade.core.model import Count, contradiction
from opfacade.core.operands import Dim, TensorSpec, counted_by, index_spec, num_valid_spec
from opfacade.core.tensor_lists import operand
from opfacade.plan import Plan
from opfacade.plans._moe.family import Experts, MoeOp, TopK
from opfacade.plans._moe.router import Routing, refuse_choice

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteArgs(Args):
    """The tensors of one routing."""

    logits: Tensor = operand("[total_num_rows, experts] in dtype; rows may have any stride")
    bias: Tensor = operand("f32 [experts], with `bias`: added to the logits")
    correction: Tensor = operand("f32 [experts], with `correction`: added to the scores for the choice only")
    given_ids: Tensor = operand("int32 [total_num_rows, top_k], with ids_given: the experts of each row")
    ids: Tensor = operand("written, without ids_given: int32 [total_num_rows, top_k]")
    weights: Tensor = operand("written: f32 [total_num_rows, top_k]")
    loads: Tensor = operand("written, with `loads`: int32 [experts], how many rows chose each")
    replicas: Tensor = operand("int32 [experts, most_replicas]: physical ids of each expert; with most_replicas")
    num_replicas: Tensor = operand("int32 [experts]: number of replicas of each expert, at least 1; with most_replicas")
    physical_ids: Tensor = operand("written, with most_replicas: int32 [total_num_rows, top_k]")
    num_valid: Tensor = operand(
        "int32 [1]: the number of valid rows; later ones are neither read nor written; with `num_valid`"
    )


class RouteDescriptor(MoeOp[RouteArgs], Routing):
    """Choose the top_k experts with the largest keys for each row, in descending order, and compute their weights.

    z = logits + bias in f32. score: "softmax" of z over all experts; "softmax_chosen" over the chosen experts; "sigmoid";
    "sqrt_softplus". The key is the score, with `correction` the score + correction. Without correction, z is compared instead,
    because its order is the same, unless the sum of two keys decides about groups.
    groups: experts are divided into groups of equal size, and only experts of the top_groups best groups are chosen. Groups are
    compared by their largest key or, with group_score "top2", by the sum of their two largest keys. For equal keys, the lower
    id comes first, and NaN comes last, so ids are distinct and in range for any logits. A weight is the score of a chosen
    expert, with `renormalise` divided by the sum of these scores (unless the sum is 0), times `scale`. NaN reaches the weights
    of its row. ids_given: given_ids is an input, and weights are computed as if these experts were chosen; an invalid id has
    weight 0. most_replicas: the physical id of expert e in row r is replicas[e, r % num_replicas[e]].
    Raises DescriptorError for fields that contradict each other.
    """

    op: Literal["route"] = Field(default="route", description="The operator.")
    error_models: ClassVar[tuple[str, ...]] = ("exact", "route-f64", "route-f32")
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows"})
    total_num_rows: Count = Field(description="Rows of logits.")
    experts: Experts = Field(description="Number of experts.")
    top_k: TopK = Field(description="Number of experts that each row chooses.")
    ids_given: bool = Field(default=False, description="Whether ids are an input.")
    loads: bool = Field(default=False, description="Whether the rows of each expert are counted in the operand loads.")
    most_replicas: Count = Field(default=0, description="Columns of the table of replicas; 0: physical ids are not computed.")
    num_valid: bool = Field(default=False, description="Whether the operand num_valid limits the number of rows.")

    @model_validator(mode="after")
    def _coherent(self) -> RouteDescriptor:
        refuse_choice(self, self.experts, self.top_k)
        if self.ids_given and (self.correction or self.groups > 1):
            raise contradiction("ids_given", "False with a correction or groups, which only affect the choice", True)
        return self

    @property
    def by_logits(self) -> bool:
        """Whether keys have the same order as z."""
        return not self.correction and (self.groups == 1 or self.group_score == "max")

    def operands(self) -> dict[str, TensorSpec]:
        rows, experts, k = Dim("total_num_rows", self.total_num_rows), Dim("experts", self.experts), Dim("top_k", self.top_k)
        size = {"f32": 4, "bf16": 2, "f16": 2}[self.dtype]
        found = {"logits": TensorSpec((rows, experts), self.dtype, "in", "rows", size)}
        each = TensorSpec((experts,), "f32", "in", "contiguous", 4)
        found |= {name: each for name in ("bias", "correction") if getattr(self, name)}
        chosen = TensorSpec((rows, k), "i32", "out", "contiguous", 4)
        given = index_spec(rows, k, values=(0, self.experts))
        found |= {"given_ids": given} if self.ids_given else {"ids": chosen}
        found["weights"] = chosen._replace(dtype="f32")
        if self.loads:
            found["loads"] = TensorSpec((experts,), "i32", "out", "contiguous", 4)
        if self.most_replicas:
            most = Dim("most_replicas", self.most_replicas)
            found |= {"replicas": index_spec(experts, most), "physical_ids": chosen}
            found["num_replicas"] = index_spec(experts, values=(1, self.most_replicas + 1))
        if not self.num_valid:
            return found
        by_row = ("logits", "given_ids", "ids", "weights", "physical_ids")
        found = {name: counted_by(spec, 0 if name in by_row else None, "num_valid") for name, spec in found.items()}
        return found | {"num_valid": num_valid_spec(self.total_num_rows)}


class RoutePlan(Plan[RouteArgs]):
    """Experts of each row and their weights."""


EXAMPLES = (
    RouteDescriptor(total_num_rows=64, experts=128, top_k=8, dtype="bf16", renormalise=True),
    RouteDescriptor(total_num_rows=63, experts=8, top_k=2, dtype="f32", score="softmax_chosen", bias=True, loads=True),
    RouteDescriptor(
        total_num_rows=33, experts=256, top_k=8, dtype="f32", score="sigmoid", correction=True, groups=8, top_groups=4,
        group_score="top2", renormalise=True, scale=2.5, num_valid=True, loads=True,
    ),
    RouteDescriptor(total_num_rows=7, experts=12, top_k=3, dtype="f16", score="sqrt_softplus", ids_given=True),
    RouteDescriptor(total_num_rows=9, experts=12, top_k=4, dtype="f32", groups=4, top_groups=2, most_replicas=3),
)  # fmt: skip
