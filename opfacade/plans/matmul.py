"""Matrix products: operands, scales, and the fused epilogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.dtypes import DType
from opfacade.core.model import Count, Single, Size, contradiction
from opfacade.core.operands import TensorSpec
from opfacade.core.tensor_lists import operand
from opfacade.plan import Plan
from opfacade.plans._matmul import checks
from opfacade.plans._matmul import operands as specs
from opfacade.plans._matmul.grouped import EXAMPLES as GROUPED
from opfacade.plans._matmul.grouped import GroupedMatmulArgs as GroupedMatmulArgs
from opfacade.plans._matmul.grouped import GroupedMatmulDescriptor as GroupedMatmulDescriptor
from opfacade.plans._matmul.grouped import GroupedMatmulPlan as GroupedMatmulPlan
from opfacade.plans._matmul.program import Activation, epilogue, numbers
from opfacade.plans._matmul.scaling import Scaling
from opfacade.plans._weights.weight import Weight
from opfacade.plans._weights.weight import refuse as refuse_weight
from opfacade.plans._weights.weight import wrong_values as wrong_weights

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.programs.expression import Node
    from opfacade.programs.fields import Number

__all__ = [
    "GroupedMatmulArgs", "GroupedMatmulDescriptor", "GroupedMatmulPlan",
    "MatmulArgs", "MatmulDescriptor", "MatmulPlan", "Scaling", "Weight",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulArgs(Args):
    """The tensors of one product. Rows may have any stride; with batch above 1, all operands except bias have a leading batch
    axis."""

    x: Tensor | None = operand("[total_num_rows, k] in dtype; [k, total_num_rows] with x_layout km")
    weight: Tensor | None = operand(
        "[n, k] in dtype, [2 n, k] with `gated`; [k, ..] with weight_layout kn; with weight_format, codes"
    )
    bias: Tensor | None = operand("in bias_dtype, with `bias`: an element for each row of weight")
    add: Tensor | None = operand("like out, with `add`: added to the result")
    out: Tensor | None = operand("written: [total_num_rows, n] in out_dtype; read with `accumulate`")
    x_scale: Tensor | None = operand("with `scaling`: the scales of x")
    weight_scale: Tensor | None = operand("with `scaling` or weight_format: the scales of weight")
    weight_zero: Tensor | None = operand("with weight_format.zero: [n, groups], as weight_scale")
    weight_global: Tensor | None = operand("f32 [1], with weight_format.global_scale: one scale for the whole weight")
    weight_groups: Tensor | None = operand("int32 [k], with weight_format.num_groups: the group of each element")
    x_zero: Tensor | None = operand("int32 with the shape of x_scale, with `scaling.x_zero`: the code of x that represents 0")
    weight_sum: Tensor | None = operand("int32, with `scaling.x_zero`: the sum over k of each row of weight")
    out_scale: Tensor | None = operand("f32 [1], with an 8-bit out_dtype: the scale that the result is divided by")
    num_valid: Tensor | None = operand(
        "int32 [1]: the number of valid rows; later ones are neither read nor written; with `num_valid`"
    )


class MatmulDescriptor(Descriptor[MatmulArgs]):
    """out = activation(alpha * sum over k of x * weight + bias) + beta * add; accumulate also adds beta * the old out.

    gated: columns of weight alternate between gate and up, and out[j] = activation(gate) * up of columns 2 j and 2 j + 1;
    weight and bias have 2 n columns.
    Sums and the epilogue are f32 (f64 for f64, s32 for i8), and out is rounded once. With k = 0 the sum is 0. Without scaling,
    the result of i8 is i32. order "k": sums are added in one chain in the order of k, without segments, so every kernel of a
    type gives the same bits; the reference adds in f64. NaN and infinities in a row of x affect only this row, those of weight
    only their column.
    weight_format: weight contains codes of few bits; Weight describes the numbers they stand for. With f8_e4m3 rows, `scaling`
    then describes x_scale alone.
    Raises DescriptorError for fields that contradict each other.
    """

    op: Literal["matmul"] = Field(default="matmul", description="The operator.")
    category: ClassVar[str] = "matmul"
    error_models: ClassVar[tuple[str, ...]] = (
        "exact",
        "matmul-s32",
        "matmul-f64",
        "matmul-f32",
        "matmul-tf32",
        "matmul-mma16",
        "matmul-mma8",
    )
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows", "n", "k", "batch"})
    later: ClassVar[frozenset[str]] = frozenset({"fp32_precision"})
    tuning_ignores: ClassVar[frozenset[str]] = frozenset({"alpha", "beta"})
    total_num_rows: Count = Field(description="Rows of x and out.")
    n: Count = Field(description="Columns of out.")
    k: Count = Field(description="Terms of a sum.")
    batch: Size = Field(default=1, description="Number of independent products; with 1, operands have no batch axis.")
    dtype: Literal["f16", "bf16", "f32", "f64", "f8_e4m3", "f8_e5m2", "i8"] = Field(description="Element type of x and weight.")
    out_dtype: Literal["f16", "bf16", "f32", "f64", "i32", "f8_e4m3", "f8_e5m2", "i8"] | None = Field(
        default=None,
        description="Element type of out and add; null: dtype; for 8-bit types bf16, for i8 without scaling i32. f8, i8: the"
        " result is divided by the operand out_scale and saturates; i8 rounds half to even.",
    )
    fp32_precision: Literal["ieee", "tf32"] = Field(
        default="ieee",
        description='How kernels may multiply f32: "ieee": in f32; "tf32": after they cut x and weight to 10 bits of mantissa.',
    )
    weight_layout: Literal["nk", "kn"] = Field(default="nk", description="Axes of weight.")
    x_layout: Literal["mk", "km"] = Field(default="mk", description="Order of the axes of x; m is the axis of rows.")
    scaling: Scaling | None = Field(default=None, description="Scales of 8-bit operands; null: 1.")
    weight_format: Weight | None = Field(default=None, description="Format of a weight with fewer bits than x; null: dtype.")
    bias: bool = Field(default=False, description="Whether the operand bias is added before the activation.")
    bias_dtype: Literal["f16", "bf16", "f32", "f64"] | None = Field(
        default=None, description="Element type of bias; null: out_dtype."
    )
    activation: Activation = Field(default="none", description="Function that is applied to the result.")
    gated: bool = Field(default=False, description="Whether columns alternate between gate and up.")
    add: bool = Field(default=False, description="Whether the operand add is added after the activation.")
    accumulate: bool = Field(default=False, description="Whether the result is added to out.")
    alpha: Single = Field(default=1.0, description="Factor of the product; other values use the same kernel.")
    beta: Single = Field(default=1.0, description="Factor of add and of the old out; other values use the same kernel.")
    num_valid: bool = Field(default=False, description="Whether the operand num_valid limits the number of rows.")
    order: Literal["free", "k"] = Field(
        default="free", description='Order of addition: "free": as the SKU states; "k": the order of k.'
    )
    sm_limit: Size | None = Field(default=None, description="Largest number of SMs that a kernel may occupy; null: all.")

    @model_validator(mode="after")
    def _addressable(self) -> Any:
        """Refuses contradictory fields before the operands are computed."""
        checks.refuse(self)
        if self.fp32_precision != "ieee" and (self.dtype != "f32" or self.weight_format is not None):
            raise contradiction("fp32_precision", "ieee unless x and weight are f32", self.fp32_precision)
        if self.weight_format is not None:
            refuse_weight(self, self.weight_format)
        return super()._addressable()  # type: ignore[operator]

    @property
    def result(self) -> DType:
        """Element type of out."""
        return self.out_dtype or checks.default_out(self.dtype, self.scaling is not None)

    @property
    def math(self) -> Literal["f32", "f64"]:
        """The type of the epilogue."""
        return "f64" if self.dtype == "f64" else "f32"

    @property
    def columns(self) -> int:
        """Columns of the product for one column of out."""
        return 2 if self.gated else 1

    @property
    def scalars(self) -> tuple[Number, ...]:
        return numbers(self)

    def program(self) -> dict[str, Node]:
        """{"out": its value} as a program of the sums; empty if out is the i32 sum itself."""
        return {} if self.result == "i32" else {"out": epilogue(self)}

    def operands(self) -> dict[str, TensorSpec]:
        return specs.operands(self)

    def wrong_values(self, name: str, args: MatmulArgs) -> tuple[Tensor, str] | None:
        found = super().wrong_values(name, args)
        return found if self.weight_format is None else wrong_weights(name, getattr(args, name), found)


class MatmulPlan(Plan[MatmulArgs]):
    """Products of matrices."""


EXAMPLES = (
    MatmulDescriptor(total_num_rows=64, n=512, k=1024, dtype="bf16"),
    MatmulDescriptor(total_num_rows=7, n=96, k=200, dtype="bf16", out_dtype="f32", bias=True, activation="silu"),
    MatmulDescriptor(total_num_rows=63, n=65, k=33, dtype="f16", weight_layout="kn", add=True, alpha=0.5, beta=2.0),
    MatmulDescriptor(
        total_num_rows=40,
        n=72,
        k=130,
        batch=3,
        dtype="bf16",
        out_dtype="f32",
        x_layout="km",
        weight_layout="kn",
        accumulate=True,
    ),
    MatmulDescriptor(
        total_num_rows=13, n=96, k=64, dtype="bf16", bias=True, activation="silu", gated=True, num_valid=True, order="k"
    ),
    MatmulDescriptor(total_num_rows=9, n=40, k=50, dtype="f32", bias=True, activation="gelu"),
    MatmulDescriptor(total_num_rows=5, n=9, k=17, batch=2, dtype="f64", add=True),
    MatmulDescriptor(total_num_rows=7, n=96, k=160, dtype="f8_e4m3", scaling=Scaling(kind="token"), bias=True),
    MatmulDescriptor(
        total_num_rows=7, n=200, k=320, dtype="f8_e4m3", scaling=Scaling(kind="block", x_scale_layout="column_padded4")
    ),
    MatmulDescriptor(
        total_num_rows=6,
        n=40,
        k=96,
        dtype="f8_e4m3",
        scaling=Scaling(kind="mx32", x_scale_dtype="f8_e8m0", weight_scale_dtype="f8_e8m0"),
    ),
    MatmulDescriptor(
        total_num_rows=9, n=48, k=64, dtype="f8_e5m2", scaling=Scaling(kind="tensor", weight_starts=(32,)), num_valid=True
    ),
    MatmulDescriptor(
        total_num_rows=7, n=64, k=96, dtype="i8", scaling=Scaling(kind="token", weight_kind="tensor"), out_dtype="f16"
    ),
    MatmulDescriptor(total_num_rows=7, n=33, k=65, dtype="i8"),
    MatmulDescriptor(total_num_rows=5, n=40, k=96, dtype="bf16", weight_format=Weight(dtype="int4", group=32)),
    MatmulDescriptor(
        total_num_rows=3,
        n=24,
        k=200,
        dtype="f16",
        bias=True,
        activation="silu",
        weight_format=Weight(dtype="uint4", group=128, group_offset=8, scale_dtype="f16", zero="int", dequantise="rounded"),
    ),
    MatmulDescriptor(
        total_num_rows=4,
        n=17,
        k=72,
        dtype="bf16",
        gated=True,
        activation="silu",
        weight_format=Weight(dtype="uint4", num_groups=3, zero="float", scale_dtype="f16", dequantise="group_sum"),
    ),
    MatmulDescriptor(
        total_num_rows=6, n=33, k=64, dtype="bf16", weight_format=Weight(dtype="e2m1", group=32, scale_dtype="f8_e8m0")
    ),
    MatmulDescriptor(
        total_num_rows=3,
        n=9,
        k=80,
        batch=2,
        dtype="bf16",
        num_valid=True,
        weight_format=Weight(dtype="e2m1", group=16, scale_dtype="f8_e4m3", global_scale=True),
    ),
    MatmulDescriptor(
        total_num_rows=7,
        n=16,
        k=33,
        dtype="f32",
        weight_format=Weight(dtype="f8_e4m3", scale_dtype="f32", dequantise="rounded"),
    ),
    MatmulDescriptor(
        total_num_rows=2,
        n=8,
        k=64,
        dtype="bf16",
        weight_format=Weight(dtype="int4", group=64, zero="added", dequantise="rounded"),
    ),
    MatmulDescriptor(total_num_rows=7, n=64, k=96, dtype="i8", scaling=Scaling(kind="token", x_zero=True), bias=True),
    MatmulDescriptor(
        total_num_rows=6,
        n=40,
        k=384,
        dtype="f8_e4m3",
        scaling=Scaling(kind="token"),
        weight_format=Weight(dtype="int4", group=128, dequantise="group_sum"),
    ),
    MatmulDescriptor(
        total_num_rows=6, n=40, k=80, dtype="bf16", weight_format=Weight(dtype="f8_e4m3", scale_dtype="f32"), num_valid=True
    ),
    MatmulDescriptor(
        total_num_rows=260,
        n=96,
        k=320,
        dtype="bf16",
        sm_limit=1,
        weight_format=Weight(dtype="uint4", group=64, zero="int", dequantise="rounded"),
    ),
    MatmulDescriptor(
        total_num_rows=7,
        n=48,
        k=160,
        dtype="f8_e4m3",
        out_dtype="f8_e4m3",
        scaling=Scaling(kind="token"),
        bias=True,
        bias_dtype="bf16",
        activation="silu",
        gated=True,
    ),
    MatmulDescriptor(total_num_rows=9, n=40, k=96, dtype="i8", out_dtype="i8", scaling=Scaling(kind="token")),
    MatmulDescriptor(total_num_rows=5, n=43, k=77, dtype="bf16", out_dtype="f32", bias=True),
    MatmulDescriptor(
        total_num_rows=7,
        n=40,
        k=328,
        dtype="bf16",
        weight_format=Weight(dtype="uint4", num_groups=5, zero="int", dequantise="rounded"),
    ),
    *GROUPED,
)
