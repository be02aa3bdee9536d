"""Softmax along one axis, with a temperature and a mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from opfacade.core.descriptor import Args
from opfacade.core.dtypes import RealDType
from opfacade.core.model import Integer, Single, contradiction
from opfacade.core.tensor_lists import operand
from opfacade.plan import Plan
from opfacade.plans._folds.named import NamedFold
from opfacade.plans._folds.program import Extents, FoldOutput, FoldProgram
from opfacade.programs.expression import apply, constant, scalar, stage, value
from opfacade.programs.fields import Input, Number
from opfacade.programs.stages import Stage

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SoftmaxArgs", "SoftmaxDescriptor", "SoftmaxPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxArgs(Args):
    """The tensors of one softmax, of any strides."""

    x: Tensor | None = operand("[shape] in dtype")
    mask: Tensor | None = operand("bool [shape], with `mask`: true for elements that count; may be broadcast")
    out: Tensor | None = operand("written: [shape] in out_dtype")
    num_valid: Tensor | None = operand(
        "int32 [1]: the number of valid entries of axis 0; later ones are neither read nor written; with `num_valid`"
    )


class SoftmaxDescriptor(NamedFold[SoftmaxArgs]):
    """out = exp(y - max) / sum of exp(y - max) along `axis`, with y = x / temperature; with `log` its logarithm.

    mask: elements with false have y = -inf. A row with only -inf gives NaN; with `safe` it gives 0, or -inf with `log`.
    Arithmetic is f32 (f64 for f64), and out is rounded once. Raises DescriptorError for an axis out of range.
    """

    op: Literal["softmax"] = Field(default="softmax", description="The operator.")
    category: ClassVar[str] = "softmax"
    tuning_ignores: ClassVar[frozenset[str]] = frozenset({"temperature"})
    shape: Extents = Field(description="Shape of x, at most 8 axes.")
    axis: Integer = Field(default=-1, description="Axis along which results add up to 1; negative values count from the end.")
    dtype: RealDType = Field(description="Element type of x.")
    out_dtype: RealDType | None = Field(default=None, description="Element type of out; null: dtype.")
    log: bool = Field(default=False, description="Whether the result is the logarithm.")
    temperature: Single = Field(default=1.0, description="Divisor of the elements; at least 2^-126, or for f64 above 0.")
    mask: bool = Field(default=False, description="Whether the operand mask hides elements.")
    safe: bool = Field(default=False, description="Whether a row in which the mask hides everything gives 0 instead of NaN.")
    num_valid: bool = Field(default=False, description="Whether the operand num_valid limits the entries of axis 0.")

    @property
    def along(self) -> int:
        return self.axis % len(self.shape)

    def refuse(self) -> None:
        rank = len(self.shape)
        if not -rank <= self.axis < rank:
            raise contradiction("axis", f"one of the {rank} axes of shape, {-rank} .. {rank - 1}", self.axis)
        if self.temperature <= 0 or (self.dtype != "f64" and self.temperature < 2.0**-126):  # not 0 in f32
            raise contradiction("temperature", "2^-126 or more; for f64, above 0", self.temperature)
        if (self.dtype == "f64") != ((self.out_dtype or self.dtype) == "f64"):
            raise contradiction("out_dtype", "f64 for f64, and only then", self.out_dtype)
        if self.num_valid and self.along == 0:
            raise contradiction("num_valid", "false along axis 0", True)

    def program(self) -> FoldProgram:
        kind: Any = "f64" if self.dtype == "f64" else "f32"
        scaled = self.temperature != 1.0
        y = value("x", kind) / scalar("temperature", kind) if scaled else value("x", kind)
        y = apply("select", value("mask", "bool"), y, constant("-inf", kind)) if self.mask else y
        most, total = stage(0, kind, "max"), stage(0, kind, "sum")
        found = y - most - apply("log", total) if self.log else apply("exp", y - most) / total
        if self.safe:
            nothing = constant("-inf", kind) if self.log else constant(0.0, kind)
            found = apply("select", apply("eq", most, constant("-inf", kind)), nothing, found)
        inputs = (Input(name="x", dtype=self.dtype), *((Input(name="mask", dtype="bool"),) if self.mask else ()))
        return FoldProgram(
            shape=self.shape,
            fold=(self.along,),
            inputs=inputs,
            scalars=(Number(name="temperature", value=self.temperature, type=kind),) if scaled else (),
            stages=(Stage(reducer="expsum", value=y),),
            outputs=(FoldOutput(name="out", dtype=self.out_dtype or self.dtype, value=found),),
            num_valid=self.num_valid,
        )


class SoftmaxPlan(Plan[SoftmaxArgs]):
    """Softmax along one axis."""


EXAMPLES = (
    SoftmaxDescriptor(shape=(64, 4096), dtype="bf16"),
    SoftmaxDescriptor(shape=(7, 1000), dtype="f32", log=True),
    SoftmaxDescriptor(shape=(3, 63, 5), axis=1, dtype="f32"),
    SoftmaxDescriptor(shape=(5, 7, 130), dtype="f16", temperature=0.7, mask=True, safe=True, out_dtype="f32"),
    SoftmaxDescriptor(shape=(9, 40), dtype="bf16", num_valid=True),
)
