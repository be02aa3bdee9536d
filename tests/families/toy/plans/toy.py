"""A family that only tests know: one dense op that reads and overwrites an operand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from opfacade.descriptor import Args, Descriptor
from opfacade.model import Count, Single, Size
from opfacade.operands import Dim, TensorSpec
from opfacade.plan import Plan
from opfacade.sku import DType

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleArgs(Args):
    x: Tensor
    gain: Tensor
    peak: Tensor


class ScaleDescriptor(Descriptor[ScaleArgs]):
    """x [rows, width] becomes factor * gain * x in place; peak [rows] is the largest magnitude of each new row."""

    op: Literal["scale"] = "scale"
    category: ClassVar[str] = "toy"
    args_type: ClassVar[type[Args]] = ScaleArgs
    sizes: ClassVar[frozenset[str]] = frozenset({"rows"})
    rows: Count
    width: Size
    factor: Single = 0.5
    dtype: DType

    def operands(self) -> dict[str, TensorSpec]:
        rows, width = Dim("rows", self.rows), Dim("width", self.width)
        return {
            "x": TensorSpec((rows, width), self.dtype, "inout"),
            "gain": TensorSpec((width,), "f32", "in", "contiguous", alignment=4),
            "peak": TensorSpec((rows,), "f32", "out", "contiguous", alignment=4),
        }


class ScalePlan(Plan[ScaleArgs]): ...


EXAMPLES = (
    ScaleDescriptor(rows=64, width=128, dtype="bf16"),
    ScaleDescriptor(rows=7, width=63, dtype="f32", factor=-3.0),
)
