"""Sorting: the rows of each expert, one expert behind the other."""

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

    ids: Tensor = operand("[total_num_rows, top_k]: an expert of each choice; others than the local ones are left out")
    indptr: Tensor = operand("written: [local experts + 1], where the choices of each begin in order")
    order: Tensor = operand("written: [total_num_rows * top_k], choices by expert; behind the last one 0")
    x_rows: Tensor = operand("written: [total_num_rows * top_k], the row of each choice in order; behind the last one 0")
    places: Tensor = operand("written: [total_num_rows, top_k], where each choice is in order; -1 of those left out")


class MoeSortDescriptor(MoeOp[MoeSortArgs]):
    """Choices of experts, numbered row * top_k + slot, in the order of experts and then of their numbers.

    Only the num_local experts from first_expert on have a part, as a rank of expert parallelism owns them; a choice of another
    expert, or of an id that is none, has no place. `indptr` and `x_rows` are those of a grouped product that gathers.
    """

    op: Literal["moe_sort"] = Field(default="moe_sort", description="The operator.")
    error_models: ClassVar[tuple[str, ...]] = ("exact",)
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows"})
    total_num_rows: Count = Field(description="Rows that chose.")
    top_k: TopK = Field(description="Choices of each row.")
    experts: Experts = Field(description="Experts there are.")
    first_expert: Count = Field(default=0, description="The first expert that has a part.")
    num_local: Size | None = Field(default=None, description="Experts that have a part; null: all from the first on.")

    @model_validator(mode="after")
    def _coherent(self) -> MoeSortDescriptor:
        if self.first_expert >= self.experts:
            raise contradiction("first_expert", f"below {self.experts} experts", self.first_expert)
        if self.num_local is not None and self.first_expert + self.num_local > self.experts:
            raise contradiction("num_local", f"at most {self.experts - self.first_expert} from there on", self.num_local)
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
