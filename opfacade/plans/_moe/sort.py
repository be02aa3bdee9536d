"""Sorting: the rows of each expert, one expert after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Args
from opfacade.core.model import INT32_MAX, Count, Size, contradiction
from opfacade.core.operands import Dim, TensorSpec, index_spec
from opfacade.core.tensor_lists import operand
from opfacade.plan import Plan
from opfacade.plans._moe.family import Experts, MoeOp, TopK

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSortArgs(Args):
    """The tensors of one sort, all int32 and contiguous."""

    ids: Tensor = operand("[total_num_rows, top_k]: the expert of each choice; choices of experts on other ranks are ignored")
    indptr: Tensor = operand("written: [local experts + 1], the position in order where the choices of each expert begin")
    order: Tensor = operand("written: [total_num_rows * top_k], choices sorted by expert; 0 after the last one")
    x_rows: Tensor = operand("written: [total_num_rows * top_k], the row of each choice in order; 0 after the last one")
    places: Tensor = operand("written: [total_num_rows, top_k], the position of each choice in order; -1 for ignored choices")


class MoeSortDescriptor(MoeOp[MoeSortArgs]):
    """Sort the choices of experts, numbered row * top_k + slot, by expert and then by number.

    Only choices of the num_local experts from first_expert on are sorted, as for a rank of expert parallelism; choices of other
    experts and invalid ids have no place. `indptr` and `x_rows` are operands of a grouped product with gather.
    """

    op: Literal["moe_sort"] = Field(default="moe_sort", description="The operator.")
    error_models: ClassVar[tuple[str, ...]] = ("exact",)
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows"})
    total_num_rows: Count = Field(description="Rows of ids.")
    top_k: TopK = Field(description="Number of choices per row.")
    experts: Experts = Field(description="Number of experts.")
    first_expert: Count = Field(default=0, description="First expert of this rank.")
    num_local: Size | None = Field(default=None, description="Number of experts of this rank; null: all from first_expert on.")

    @model_validator(mode="after")
    def _coherent(self) -> MoeSortDescriptor:
        if self.first_expert >= self.experts:
            raise contradiction("first_expert", f"below {self.experts} experts", self.first_expert)
        if self.num_local is not None and self.first_expert + self.num_local > self.experts:
            raise contradiction(
                "num_local",
                f"at most {self.experts - self.first_expert}, the number of experts from first_expert on",
                self.num_local,
            )
        if self.total_num_rows * self.top_k > INT32_MAX:
            raise contradiction("total_num_rows", "at most 2^31 - 1 choices", self.total_num_rows)
        return self

    @property
    def local(self) -> int:
        return self.experts - self.first_expert if self.num_local is None else self.num_local

    def operands(self) -> dict[str, TensorSpec]:
        rows, k = Dim("total_num_rows", self.total_num_rows), Dim("top_k", self.top_k)
        choices = Dim("total_num_rows*top_k", self.total_num_rows * self.top_k)
        made = TensorSpec((choices,), "i32", "out", "contiguous", 4)
        ends = made._replace(shape=(Dim("local experts+1", self.local + 1),))
        found = {"ids": index_spec(rows, k, values=(-1, self.experts)), "indptr": ends, "order": made, "x_rows": made}
        return found | {"places": made._replace(shape=(rows, k))}


class MoeSortPlan(Plan[MoeSortArgs]):
    """Choices by expert."""


EXAMPLES = (
    MoeSortDescriptor(total_num_rows=64, top_k=8, experts=128),
    MoeSortDescriptor(total_num_rows=63, top_k=3, experts=12, first_expert=4, num_local=5),
)
