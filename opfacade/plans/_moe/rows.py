"""Gathering rows for experts, and combining the results of the experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from opfacade.core.descriptor import Args
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.model import Count, Single
from opfacade.core.operands import Contents, Dim, TensorSpec, counted_by, index_spec, num_valid_spec
from opfacade.core.tensor_lists import operand
from opfacade.plan import Plan
from opfacade.plans._moe.family import MoeOp, TopK

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeGatherArgs(Args):
    """The tensors of one gathering."""

    x: Tensor = operand("[total_num_rows, hidden] in dtype; rows may have any stride")
    order: Tensor = operand("int32 [total_num_rows * top_k], choices sorted by expert, as moe_sort writes them")
    weights: Tensor = operand("f32 [total_num_rows, top_k], with `weighted`: the factor of each choice")
    out: Tensor = operand("written: [total_num_rows * top_k, hidden] in dtype, one row per choice, in the order of `order`")
    num_valid: Tensor = operand(
        "int32 [1], with `num_valid`: the number of choices with a place, which is the last entry of indptr"
    )


class MoeGatherDescriptor(MoeOp[MoeGatherArgs]):
    """out[i] = x[order[i] // top_k]; with `weighted` times the weight of that choice, in f32 and rounded once.

    Rows of out from num_valid on are not written, nor are rows whose entry of order is out of range.
    """

    op: Literal["moe_gather"] = Field(default="moe_gather", description="The operator.")
    error_models: ClassVar[tuple[str, ...]] = ("exact", "moe-f64", "moe-f32")
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows", "hidden"})
    total_num_rows: Count = Field(description="Rows of x.")
    top_k: TopK = Field(description="Number of choices per row.")
    hidden: Count = Field(description="Elements of a row.")
    dtype: Literal["f16", "bf16", "f32"] = Field(description="Element type of x and out.")
    weighted: bool = Field(default=False, description="Whether each row is multiplied by the weight of its choice.")
    num_valid: bool = Field(default=False, description="Whether the operand num_valid has the number of choices with a place.")

    def operands(self) -> dict[str, TensorSpec]:
        rows, hidden = Dim("total_num_rows", self.total_num_rows), Dim("hidden", self.hidden)
        many = self.total_num_rows * self.top_k
        choices = Dim("total_num_rows*top_k", many)
        found = {"x": TensorSpec((rows, hidden), self.dtype, "in", "rows", ITEMSIZE[self.dtype])}
        found["order"] = index_spec(choices, values=(0, many), valid_rows="num_valid" if self.num_valid else "")
        if self.weighted:
            found["weights"] = TensorSpec((rows, Dim("top_k", self.top_k)), "f32", "in", "contiguous", 4)
        out = TensorSpec((choices, hidden), self.dtype, "out", "rows", ITEMSIZE[self.dtype])
        if not self.num_valid:
            return found | {"out": out}
        return found | {"out": counted_by(out, 0, "num_valid"), "num_valid": num_valid_spec(many)}


class MoeGatherPlan(Plan[MoeGatherArgs]):
    """Rows of x for experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeCombineArgs(Args):
    """The tensors of one combination."""

    y: Tensor = operand(
        "[total_num_rows * top_k, hidden] in dtype: outputs of the experts, in sorted order; rows without a place are not read"
    )
    places: Tensor = operand("int32 [total_num_rows, top_k], as moe_sort writes it; -1 for a choice without a row")
    weights: Tensor = operand("f32 [total_num_rows, top_k], with `weighted`: the factor of each choice")
    add: Tensor = operand(
        "[total_num_rows, hidden] in dtype, with `add`: added to the sum, such as the output of shared experts"
    )
    out: Tensor = operand("written: [total_num_rows, hidden] in dtype")


class MoeCombineDescriptor(MoeOp[MoeCombineArgs]):
    """out[r] = scale * sum over slots of weights[r, slot] * y[places[r, slot]], in the order of slots, + add[r].

    Sums are f32 and rounded once. A slot with an invalid place is skipped and not multiplied by 0; the sum of a row without
    valid slots is 0.
    """

    op: Literal["moe_combine"] = Field(default="moe_combine", description="The operator.")
    error_models: ClassVar[tuple[str, ...]] = ("exact", "moe-f64", "moe-f32")
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows", "hidden"})
    tuning_ignores: ClassVar[frozenset[str]] = frozenset({"scale"})
    total_num_rows: Count = Field(description="Rows of out.")
    top_k: TopK = Field(description="Number of choices per row.")
    hidden: Count = Field(description="Elements of a row.")
    dtype: Literal["f16", "bf16", "f32"] = Field(description="Element type of y, add and out.")
    weighted: bool = Field(default=True, description="Whether each row of y is multiplied by the weight of its choice.")
    add: bool = Field(default=False, description="Whether the operand add is added to the sum.")
    scale: Single = Field(default=1.0, description="Factor of the sum.")

    def operands(self) -> dict[str, TensorSpec]:
        rows, hidden, k = Dim("total_num_rows", self.total_num_rows), Dim("hidden", self.hidden), Dim("top_k", self.top_k)
        many = self.total_num_rows * self.top_k
        row = TensorSpec((rows, hidden), self.dtype, "in", "rows", ITEMSIZE[self.dtype])
        found = {"y": row._replace(shape=(Dim("total_num_rows*top_k", many), hidden))._replace(contents=Contents(finite=False))}
        found["places"] = index_spec(rows, k, values=(-1, many))
        if self.weighted:
            found["weights"] = TensorSpec((rows, k), "f32", "in", "contiguous", 4)
        if self.add:
            found["add"] = row
        return found | {"out": row._replace(role="out")}


class MoeCombinePlan(Plan[MoeCombineArgs]):
    """Weighted sums of the experts' results for each row."""


EXAMPLES = (
    MoeGatherDescriptor(total_num_rows=16, top_k=4, hidden=256, dtype="bf16"),
    MoeGatherDescriptor(total_num_rows=7, top_k=3, hidden=33, dtype="f16", weighted=True, num_valid=True),
    MoeCombineDescriptor(total_num_rows=16, top_k=4, hidden=256, dtype="bf16"),
    MoeCombineDescriptor(total_num_rows=7, top_k=3, hidden=33, dtype="f16", add=True, scale=0.5),
    MoeCombineDescriptor(total_num_rows=9, top_k=1, hidden=63, dtype="f32", weighted=False),
)
