"""Top-k: the largest values of each row, in descending order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from opfacade.core.descriptor import Args
from opfacade.core.model import Count, Size
from opfacade.core.operands import Contents, Dim, TensorSpec, num_valid_spec
from opfacade.plan import Plan
from opfacade.plans._sampling.family import LogitsDType, SamplingOp
from opfacade.plans._sampling.specs import Rows

if TYPE_CHECKING:
    from torch import Tensor

MAX_K = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKArgs(Args):
    docs: ClassVar[Mapping[str, str]] = MappingProxyType({
        "x": "[rows, vocab] in dtype, of any row stride",
        "starts": "i32 [rows], where the window of a row begins; with windows",
        "ends": "i32 [rows], where it ends, the first position after it; with windows",
        "num_valid": "i32 [1] on the device: the number of valid rows; later ones are neither read nor written; with num_valid",
        "values": "written: [rows, k] in dtype, in descending order; -inf after the last one",
        "positions": "written: i32 [rows, k]; -1 after the last one",
    })  # fmt: skip
    x: Tensor
    starts: Tensor | None = None
    ends: Tensor | None = None
    num_valid: Tensor | None = None
    values: Tensor
    positions: Tensor


class TopKDescriptor(SamplingOp[TopKArgs]):
    """The k largest values of each row and their positions; for equal values, the lower position comes first.

    NaN and -inf are ignored; if a row has fewer than k other values, the rest is -inf with position -1. -0 equals 0. With
    windows, a row has only the positions from its start to its end; positions count from the first column.
    """

    op: Literal["topk"] = Field(default="topk", description="The operator.")
    error_models: ClassVar[tuple[str, ...]] = ("exact",)
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows", "vocab", "k"})
    later: ClassVar[frozenset[str]] = frozenset({"windows"})
    most: ClassVar[int] = MAX_K  # of k
    total_num_rows: Count = Field(description="Rows.")
    vocab: Size = Field(description="Number of values per row.")
    k: int = Field(default=1, ge=1, le=MAX_K, description="Number of values to find per row, 1 to 2^20.")
    dtype: LogitsDType = Field(default="f32", description="Element type.")
    num_valid: bool = Field(default=False, description="Whether an operand on the device has the number of valid rows.")
    windows: bool = Field(default=False, description="Whether each row has a window [start, end) of columns.")

    def operands(self) -> dict[str, TensorSpec]:
        rows = Rows(self)
        found = {"x": rows.table(self.dtype)}
        if self.windows:
            bound = rows.each("i32")._replace(role="index", contents=Contents((0, self.vocab + 1)))
            found |= {"starts": bound, "ends": bound}
        if self.num_valid:
            found["num_valid"] = num_valid_spec(self.total_num_rows)
        k = Dim("k", self.k)
        return found | {"values": rows.table(self.dtype, k, "out"), "positions": rows.table("i32", k, "out")}


class TopKPlan(Plan[TopKArgs]):
    """The largest values of each row."""
