"""A family used only in tests: a dense op that overwrites an operand, and an op with every other feature of operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.dtypes import ITEMSIZE, DType, FloatDType
from opfacade.core.in_place import in_place
from opfacade.core.model import Count, Single, Size
from opfacade.core.operands import Dim, TensorSpec, index_spec, num_valid_spec
from opfacade.plan import Plan

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleArgs(Args):
    x: Tensor
    gain: Tensor
    peak: Tensor


class ScaleDescriptor(Descriptor[ScaleArgs]):
    """x [rows, width] becomes factor * gain * x in place; peak [rows] is the largest magnitude of each resulting row."""

    op: Literal["scale"] = "scale"
    category: ClassVar[str] = "toy"
    error_models: ClassVar[tuple[str, ...]] = ("exact", "toy-f32")
    args_type: ClassVar[type[Args]] = ScaleArgs
    sizes: ClassVar[frozenset[str]] = frozenset({"rows"})
    rows: Count
    width: Size
    factor: Single = 0.5
    dtype: FloatDType

    def operands(self) -> dict[str, TensorSpec]:
        rows, width = Dim("rows", self.rows), Dim("width", self.width)
        return {
            "x": TensorSpec((rows, width), self.dtype, "inout"),
            "gain": TensorSpec((width,), "f32", "in", "contiguous", alignment=4),
            "peak": TensorSpec((rows,), "f32", "out", "contiguous", alignment=4),
        }


class ScalePlan(Plan[ScaleArgs]): ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PickArgs(Args):
    x: Tensor
    table: Tensor
    index: Tensor
    gain: Tensor
    out: Tensor | None = None
    num_valid: Tensor | None = None


class PickDescriptor(Descriptor[PickArgs]):
    """out [rows, width] is x + gain * table[index]: x of any strides; the table's entries may share memory.

    gain: f32, a scalar of rank 0. in_place: the result overwrites x. num_valid: rows at and past it are neither read nor
    written.
    """

    op: Literal["pick"] = "pick"
    category: ClassVar[str] = "toy"
    error_models: ClassVar[tuple[str, ...]] = ("exact", "toy-f32")
    args_type: ClassVar[type[Args]] = PickArgs
    later: ClassVar[frozenset[str]] = frozenset({"in_place", "num_valid"})
    sizes: ClassVar[frozenset[str]] = frozenset({"rows"})
    rows: Count
    width: Size
    entries: Size
    dtype: FloatDType
    in_place: bool = False
    num_valid: bool = False

    def operands(self) -> dict[str, TensorSpec]:
        rows, width = Dim("rows", self.rows), Dim("width", self.width)
        size, valid = ITEMSIZE[self.dtype], "num_valid" if self.num_valid else ""
        x = TensorSpec((rows, width), self.dtype, "in", "strided", size, valid_rows=valid)
        found = {
            "x": x,
            "table": TensorSpec((Dim("entries", self.entries), width), self.dtype, alignment=size, broadcast=(0,)),
            "index": index_spec(rows, values=(0, self.entries), valid_rows=valid),
            "gain": TensorSpec((), "f32", alignment=4),
            "out": x._replace(role="out", replaces="x"),
        }
        if self.num_valid:
            found["num_valid"] = num_valid_spec(self.rows)
        return in_place(found) if self.in_place else found


class PickPlan(Plan[PickArgs]): ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepArgs(Args):
    x: Tensor
    mask: Tensor
    out: Tensor


class KeepDescriptor(Descriptor[KeepArgs]):
    """out [rows, width] is x in rows whose mask is true; in other rows all bits are 0. Elements may have any dtype."""

    op: Literal["keep"] = "keep"
    category: ClassVar[str] = "toy"
    error_models: ClassVar[tuple[str, ...]] = ("exact",)
    args_type: ClassVar[type[Args]] = KeepArgs
    sizes: ClassVar[frozenset[str]] = frozenset({"rows"})
    rows: Count
    width: Size
    dtype: DType

    def operands(self) -> dict[str, TensorSpec]:
        rows, width = Dim("rows", self.rows), Dim("width", self.width)
        x = TensorSpec((rows, width), self.dtype, "in", "strided", ITEMSIZE[self.dtype])
        return {"x": x, "mask": TensorSpec((rows,), "bool", "in", "contiguous", 1), "out": x._replace(role="out")}


class KeepPlan(Plan[KeepArgs]): ...


EXAMPLES = (
    KeepDescriptor(rows=9, width=20, dtype="i64"),
    KeepDescriptor(rows=7, width=63, dtype="bool"),
    PickDescriptor(rows=64, width=128, entries=9, dtype="bf16"),
    PickDescriptor(rows=7, width=63, entries=3, dtype="f32", in_place=True),
    PickDescriptor(rows=13, width=63, entries=5, dtype="f16", num_valid=True),
    PickDescriptor(rows=13, width=7, entries=5, dtype="f16", num_valid=True, in_place=True),
    ScaleDescriptor(rows=64, width=128, dtype="bf16"),
    ScaleDescriptor(rows=7, width=63, dtype="f32", factor=-3.0),
)
