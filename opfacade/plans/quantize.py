"""Quantisation of rows to 8 bits, and dequantisation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from opfacade.core.descriptor import Args, ArgsT
from opfacade.core.model import Count, Size, contradiction
from opfacade.core.operands import valid_count
from opfacade.plan import Plan
from opfacade.plans._folds.named import Axes, NamedFold, launched_on
from opfacade.plans._folds.program import FoldArgs, FoldProgram
from opfacade.plans._folds.tensor_scale import with_most
from opfacade.plans._quantize import program as programs
from opfacade.plans._quantize.quant import Quant, padded, scale_dims
from opfacade.programs.expression import value

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "DequantizeArgs",
    "DequantizeDescriptor",
    "DequantizePlan",
    "Quant",
    "QuantizeArgs",
    "QuantizeDescriptor",
    "QuantizePlan",
]

_VALID = (
    "int32 [1]: the number of valid rows; later ones are neither read nor written, and do not affect a scale; with `num_valid`"
)
_ZERO = "the stored number that represents 0"
_SCALE = (
    "in quant.scale_dtype: [1] with quant.scale static or tensor, [total_num_rows] with token, one value per group in the "
    "layout quant.scale_layout, [ceil(total_num_rows / rows), ceil(hidden / columns)] with blocks of rows and columns"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeArgs(Args):
    """The tensors of one quantisation. Rows may have any stride."""

    docs: ClassVar[Mapping[str, str]] = MappingProxyType({
        "x": "[total_num_rows, hidden] in dtype",
        "out": "written: [total_num_rows, hidden] in quant.dtype",
        "scale": f"read with quant.scale static, else written; {_SCALE}",
        "zero": f"with quant.zero: int32 of the shape of scale, {_ZERO}; read with quant.scale static, else written",
        "num_valid": _VALID,
    })  # fmt: skip

    x: Tensor | None = None
    out: Tensor | None = None
    scale: Tensor | None = None
    zero: Tensor | None = None
    num_valid: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DequantizeArgs(Args):
    """The tensors of one dequantisation. Rows may have any stride."""

    docs: ClassVar[Mapping[str, str]] = MappingProxyType({
        "x": "[total_num_rows, hidden] in quant.dtype",
        "scale": f"{_SCALE}; absent with none",
        "zero": f"with quant.zero: int32 of the shape of scale, {_ZERO}",
        "out": "written: [total_num_rows, hidden] in dtype",
        "num_valid": "int32 [1]: the number of valid rows; later ones are neither read nor written; with `num_valid`",
    })  # fmt: skip

    x: Tensor | None = None
    scale: Tensor | None = None
    zero: Tensor | None = None
    out: Tensor | None = None
    num_valid: Tensor | None = None


class _Quantised(NamedFold[ArgsT]):
    """Fields and axes that both directions share: rows, groups of a row, elements of a group."""

    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows"})
    total_num_rows: Count = Field(description="Rows.")
    hidden: Size = Field(description="Elements of a row.")
    dtype: Literal["f16", "bf16", "f32"] = Field(description="Element type of the tensor that is not quantised.")
    quant: Quant = Field(default=Quant(), description="How elements are quantised.")
    num_valid: bool = Field(default=False, description="Whether the operand num_valid limits the number of rows.")

    def refuse(self) -> None:
        if self.quant.scale == "group" and self.hidden % self.quant.group:
            raise contradiction("quant.group", f"a divisor of hidden={self.hidden}", self.quant.group)

    @property
    def groups(self) -> int:
        return self.hidden // self.quant.group if self.quant.scale == "group" else 1

    def dims(self) -> Mapping[str, tuple[Axes, ...]]:
        rows: tuple[Axes, ...] = ((0, 1), (2, 3)) if self.quant.scale == "block" else ((0,), (1, 2))
        scales = scale_dims(self.quant, (1,))
        return {"x": rows, "out": rows, "scale": scales, "zero": scales}

    def dim_names(self) -> Mapping[Axes, str]:
        if self.quant.scale == "block":
            return {(0, 1): "total_num_rows", (2, 3): "hidden", (0,): "rows of blocks", (2,): "columns of blocks"}
        return {(0,): "total_num_rows", (1, 2): "hidden", (1,): "hidden / group"}

    def extents(self) -> Mapping[tuple[str, int], int]:
        if self.quant.scale == "block":
            sizes = (self.total_num_rows, self.hidden)
            return {(name, dim): sizes[dim] for name in ("x", "out") for dim in (0, 1)}
        known = self.quant.scale_layout == "column_padded4"
        return {("scale", 1): padded(self.total_num_rows, self.quant)} if known else {}

    def counted(self) -> tuple[Axes, int]:
        return (0, 1) if self.quant.scale == "block" else (0,), self.total_num_rows

    def wrong_values(self, name: str, args: Args) -> tuple[Tensor, str] | None:
        """Scales of blocks without a valid row may contain any value."""
        found = super().wrong_values(name, args)
        if found is not None and name == "scale" and self.quant.scale == "block":
            found[0][self.valid_blocks(args) :] = False
        return found

    def valid_blocks(self, args: Any) -> int:
        """The number of blocks, along the rows, that contain a valid row."""
        rows = self.total_num_rows if args.num_valid is None else valid_count(args.num_valid, self.total_num_rows)
        return -(-rows // self.quant.block[0])

    def valid_part(self, args: Any) -> tuple[Any, Any]:
        """If rows share the scale of a block, the problem and call with only the valid rows; otherwise those given."""
        if self.quant.scale != "block" or args.num_valid is None:
            return self, args
        rows = valid_count(args.num_valid, self.total_num_rows)
        problem = self.model_copy(update={"total_num_rows": rows, "num_valid": False})
        return problem, replace(args, x=args.x[:rows], out=args.out[:rows], num_valid=None)

    def facts(self) -> dict[str, Any]:
        return {"scale": self.quant.scale}

    def whole(self, args: Any) -> Any:
        """The call with whole blocks, in copies of x and out; the last row and column are repeated. The same call if all blocks
        are whole."""
        if self.quant.scale != "block":
            return args
        rows, columns = (math.prod(self.lengths()[:2]), math.prod(self.lengths()[2:]))
        if (rows, columns) == tuple(args.x.shape):
            return args
        return replace(args, **{name: _extended(getattr(args, name), (rows, columns)) for name in ("x", "out")})

    def fold_args(self, args: Args) -> FoldArgs:
        return super().fold_args(self.whole(args))

    def lengths(self) -> tuple[int, ...]:
        if self.quant.scale == "block":
            rows, columns = self.quant.block
            return (-(-self.total_num_rows // rows), rows, -(-self.hidden // columns), columns)
        return (self.total_num_rows, self.groups, self.hidden // self.groups)


class QuantizeDescriptor(_Quantised[QuantizeArgs]):
    """out = x / scale, rounded to nearest, ties to even, saturating; `quant` says whether scales are results, an operand or 1.

    With quant.zero, out = round(x / scale) + zero. The division is correctly rounded, so the bits are the same on every device.
    With num_valid, a scale depends only on the valid rows; if no row is valid, a quant.scale "tensor" is the scale of zeros.
    Raises DescriptorError if quant.group does not divide hidden.
    """

    op: Literal["quantize"] = Field(default="quantize", description="The operator.")
    category: ClassVar[str] = "quantize"

    def refuse(self) -> None:
        super().refuse()
        if self.quant.scale == "tensor" and self.total_num_rows == 0:
            raise contradiction("total_num_rows", "1 or more with one scale for all rows", 0)

    def folds_rows(self) -> bool:
        return self.quant.scale == "tensor"

    def program(self) -> FoldProgram:
        return programs.quantised(self)

    def launched(self) -> FoldProgram:
        """With quant.scale tensor: the fold of rows that reads the scale and writes the largest |x| of each row."""
        return launched_on(self, self._launched)

    def _launched(self) -> FoldProgram:
        static = self.model_copy(update={"quant": self.quant.model_copy(update={"scale": "static"})})
        return with_most(static.folded(), value("x", "f32"))


class DequantizeDescriptor(_Quantised[DequantizeArgs]):
    """out = x * scale, rounded once to dtype; with quant.zero (x - zero) * scale."""

    op: Literal["dequantize"] = Field(default="dequantize", description="The operator.")
    category: ClassVar[str] = "quantize"

    def program(self) -> FoldProgram:
        return programs.dequantised(self)


def _extended(tensor: Tensor, sizes: tuple[int, int]) -> Tensor:
    """A padded copy whose last row and column are repeated."""
    import torch

    raw = tensor.view(torch.int8) if tensor.itemsize == 1 else tensor
    for axis, size in enumerate(sizes):
        raw = raw.index_select(axis, torch.arange(size, device=raw.device).clamp(max=tensor.shape[axis] - 1))
    return raw.view(tensor.dtype)


class QuantizePlan(Plan[QuantizeArgs]):
    """Quantisation of rows."""


class DequantizePlan(Plan[DequantizeArgs]):
    """Dequantisation of rows."""


EXAMPLES = (
    QuantizeDescriptor(total_num_rows=64, hidden=7168, dtype="bf16"),
    QuantizeDescriptor(total_num_rows=7, hidden=256, dtype="f16", quant=Quant(scale_layout="column")),
    QuantizeDescriptor(total_num_rows=9, hidden=1000, dtype="f32", quant=Quant(dtype="i8", scale="token"), num_valid=True),
    QuantizeDescriptor(total_num_rows=5, hidden=63, dtype="bf16", quant=Quant(dtype="f8_e5m2", scale="tensor")),
    QuantizeDescriptor(total_num_rows=5, hidden=63, dtype="bf16", quant=Quant(scale="static")),
    QuantizeDescriptor(
        total_num_rows=7, hidden=512, dtype="bf16", quant=Quant(scale_dtype="f8_e8m0", scale_layout="column_padded4")
    ),
    QuantizeDescriptor(total_num_rows=200, hidden=320, dtype="bf16", quant=Quant(scale="block")),
    DequantizeDescriptor(total_num_rows=64, hidden=7168, dtype="bf16"),
    DequantizeDescriptor(total_num_rows=7, hidden=63, dtype="f32", quant=Quant(dtype="i8", scale="token")),
    DequantizeDescriptor(
        total_num_rows=7, hidden=256, dtype="f16", quant=Quant(dtype="f8_e5m2", scale="static"), num_valid=True
    ),
    DequantizeDescriptor(total_num_rows=70, hidden=90, dtype="bf16", quant=Quant(scale="block", block=(32, 64))),
    QuantizeDescriptor(total_num_rows=9, hidden=200, dtype="bf16", quant=Quant(scale="tensor"), num_valid=True),
    QuantizeDescriptor(
        total_num_rows=90, hidden=72, dtype="f32", quant=Quant(scale="block", block=(32, 64), dtype="i8"), num_valid=True
    ),
    DequantizeDescriptor(
        total_num_rows=90, hidden=72, dtype="bf16", quant=Quant(scale="block", block=(32, 64)), num_valid=True
    ),
    QuantizeDescriptor(total_num_rows=9, hidden=1000, dtype="bf16", quant=Quant(dtype="i8", scale="token", zero=True)),
    QuantizeDescriptor(total_num_rows=5, hidden=63, dtype="f16", quant=Quant(dtype="i8", scale="static", zero=True)),
    DequantizeDescriptor(total_num_rows=7, hidden=63, dtype="f16", quant=Quant(dtype="i8", scale="token", zero=True)),
)
