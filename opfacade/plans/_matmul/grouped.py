"""Products of groups of rows, each with its own weight: descriptor, args and plan of one call for all experts."""

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
from opfacade.plans._matmul import checks, groups
from opfacade.plans._matmul.program import Activation, epilogue, numbers
from opfacade.plans._matmul.scaling import Scaling
from opfacade.plans._weights.weight import Weight
from opfacade.plans._weights.weight import refuse as refuse_weight
from opfacade.plans._weights.weight import wrong_values as wrong_weights

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.programs.expression import Node
    from opfacade.programs.fields import Number


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedMatmulArgs(Args):
    """The tensors of one call. The first axis of an operand with one part per group is groups."""

    x: Tensor | None = operand("[total_num_rows, k] in dtype; masked: [groups, total_num_rows, k]; gather: [num_x_rows, k]")
    weight: Tensor | None = operand(
        "[groups, n, k] in dtype, 2 n with `gated`; layout k: as in matmul, [n, k]; with weight_format, codes"
    )
    bias: Tensor | None = operand("in bias_dtype, with `bias`: [groups, n], 2 n with `gated`")
    add: Tensor | None = operand("like out, with `add`: added to the result")
    out: Tensor | None = operand("written: [total_num_rows, n]; masked and k: [groups, total_num_rows, n]")
    x_scale: Tensor | None = operand("with `scaling`: the scales of x, in the order of its rows")
    weight_scale: Tensor | None = operand("with `scaling` or weight_format: the scales of weight, with a first axis [groups]")
    weight_zero: Tensor | None = operand("with weight_format.zero: as weight_scale")
    weight_global: Tensor | None = operand("f32 [groups], with weight_format.global_scale: one scale for each group's weight")
    out_scale: Tensor | None = operand("f32 [1], with an 8-bit out_dtype: the scale that all results are divided by")
    indptr: Tensor | None = operand("int32 [groups + 1]: group g has rows (layout k: elements) indptr[g] to indptr[g + 1]")
    counts: Tensor | None = operand("int32 [groups], with layout masked: group g has its first counts[g] rows")
    x_rows: Tensor | None = operand("int32, with `gather`: the row of x for each row of out")


class GroupedMatmulDescriptor(Descriptor[GroupedMatmulArgs]):
    """A product for each group of rows, which has its own weight; otherwise as MatmulDescriptor.

    layout: "ragged": group g has the rows indptr[g] to indptr[g + 1] - 1, without alignment; "masked": each group has space for
    total_num_rows rows and uses the first counts[g]; "k": indptr divides the terms of the sums, and out has one matrix per
    group, as for gradients of the weights of experts; sums of an empty group are 0.
    gather: row r of out is computed from row x_rows[r] of x. Rows of out that belong to no group are neither read nor written;
    with zero_tail they are set to 0. The sizes of groups are on the device. Entries of indptr are clamped to 0 and to the
    number of rows. A group is empty if its entries decrease or its count is out of range; a row with an invalid id is not
    written. Raises DescriptorError for fields that contradict each other.
    """

    op: Literal["grouped_matmul"] = Field(default="grouped_matmul", description="The operator.")
    category: ClassVar[str] = "matmul"
    error_models: ClassVar[tuple[str, ...]] = (
        "exact",
        "matmul-s32",
        "matmul-f64",
        "matmul-f32",
        "matmul-mma16",
        "matmul-mma8",
    )
    sizes: ClassVar[frozenset[str]] = frozenset({"groups", "total_num_rows", "n", "k", "num_x_rows"})
    later: ClassVar[frozenset[str]] = frozenset({"weight_format"})
    tuning_ignores: ClassVar[frozenset[str]] = frozenset({"alpha", "beta"})
    groups: Size = Field(description="Number of products in one call, such as the number of experts.")
    total_num_rows: Count = Field(description="Rows of out; with layout masked or k, rows of each group.")
    n: Count = Field(description="Columns of out.")
    k: Count = Field(description="Terms of a sum; with layout k, of all groups together.")
    dtype: Literal["f16", "bf16", "f32", "f64", "f8_e4m3", "f8_e5m2", "i8"] = Field(description="Element type of x and weight.")
    layout: Literal["ragged", "masked", "k"] = Field(
        default="ragged", description="Which part of an operand belongs to a group."
    )
    gather: bool = Field(default=False, description="Whether the operand x_rows has the row of x for each row of out.")
    num_x_rows: Count | None = Field(default=None, description="Rows of x with gather; null: total_num_rows.")
    zero_tail: bool = Field(default=False, description="Whether rows of out that belong to no group are set to 0.")
    out_dtype: Literal["f16", "bf16", "f32", "f64", "i32", "f8_e4m3", "f8_e5m2", "i8"] | None = Field(
        default=None,
        description="Element type of out and add; null: dtype; for 8-bit types bf16, for i8 without scaling i32. f8, i8:"
        " results of all groups are divided by the operand out_scale and saturate; i8 rounds half to even.",
    )
    weight_layout: Literal["nk", "kn"] = Field(default="nk", description="Order of the last two axes of weight.")
    x_layout: Literal["mk", "km"] = Field(default="mk", description="Order of the axes of x; km only with layout k.")
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
    order: Literal["free", "k"] = Field(
        default="free", description='Order of addition: "free": as the SKU states; "k": the order of k.'
    )
    sm_limit: Size | None = Field(default=None, description="Largest number of SMs that a kernel may occupy; null: all.")

    @model_validator(mode="after")
    def _addressable(self) -> Any:
        """Refuses contradictory fields before the operands are computed."""
        checks.refuse(self)
        _refuse(self)
        return super()._addressable()  # type: ignore[operator]

    @classmethod
    def family(cls) -> str:
        return "matmul"

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
    def rows_of_x(self) -> int:
        """Rows of x if a group is a range of rows."""
        return self.total_num_rows if self.num_x_rows is None else self.num_x_rows

    @property
    def scalars(self) -> tuple[Number, ...]:
        return numbers(self)

    def program(self) -> dict[str, Node]:
        """{"out": its value} as a program of the sums; empty if out is the i32 sum itself."""
        return {} if self.result == "i32" else {"out": epilogue(self)}

    def operands(self) -> dict[str, TensorSpec]:
        return groups.operands(self)

    def wrong_values(self, name: str, args: Any) -> tuple[Tensor, str] | None:
        """Elements outside every group are not read."""
        found = super().wrong_values(name, args)
        found = found if self.weight_format is None else wrong_weights(name, getattr(args, name), found)
        read = None if found is None else groups.read(self, args, name)
        return found if found is None or read is None else (found[0] & read, found[1])


def _refuse(problem: GroupedMatmulDescriptor) -> None:
    """Raises the first contradiction of groups."""
    if problem.num_x_rows is not None and not problem.gather:
        raise contradiction("num_x_rows", "null without gather", problem.num_x_rows)
    if problem.x_layout == "km" and problem.layout != "k":
        raise contradiction("x_layout", "mk, because the rows of groups must be contiguous", problem.x_layout)
    if problem.zero_tail and problem.accumulate:
        raise contradiction("zero_tail", "False with accumulate, because out keeps its values", True)
    if problem.scaling is not None and problem.scaling.x_zero:
        raise contradiction("scaling.x_zero", "False, because grouped products do not support zero points", True)
    if problem.weight_format is not None:
        _refuse_weight(problem, problem.weight_format)
    if problem.layout != "k":
        return
    if problem.result in checks.EIGHT_BIT_RESULTS:
        raise contradiction(
            "out_dtype", "a type of 16 or more bits with layout k, because gradients have no scale", problem.result
        )
    for field in ("gather", "zero_tail"):
        if getattr(problem, field):
            raise contradiction(field, "False with layout k, because every row of out is written", True)
    if problem.scaling is not None and problem.scaling.in_k:
        raise contradiction(
            "scaling.kind", "tensor or token with layout k, because a group may begin inside a block", problem.scaling.kind
        )


def _refuse_weight(problem: GroupedMatmulDescriptor, weight: Weight) -> None:
    refuse_weight(problem, weight)
    if problem.layout == "k":
        raise contradiction("weight_format", "null with layout k, because gradients have no codes", weight.dtype)
    if weight.num_groups is not None:
        raise contradiction("weight_format.num_groups", "null, because all groups have one order of k", weight.num_groups)


class GroupedMatmulPlan(Plan[GroupedMatmulArgs]):
    """Products of groups of rows."""


EXAMPLES = (
    GroupedMatmulDescriptor(groups=8, total_num_rows=64, n=256, k=512, dtype="bf16"),
    GroupedMatmulDescriptor(
        groups=5, total_num_rows=63, n=40, k=72, dtype="bf16", gather=True, num_x_rows=21, gated=True, activation="silu"
    ),
    GroupedMatmulDescriptor(
        groups=3, total_num_rows=7, n=33, k=65, dtype="f16", layout="masked", bias=True, zero_tail=True, weight_layout="kn"
    ),
    GroupedMatmulDescriptor(
        groups=4, total_num_rows=40, n=24, k=63, dtype="bf16", layout="k", x_layout="km", weight_layout="kn", out_dtype="f32",
        accumulate=True,
    ),
    GroupedMatmulDescriptor(
        groups=3, total_num_rows=21, n=136, k=264, dtype="f8_e4m3", gather=True, num_x_rows=9,
        scaling=Scaling(kind="block", x_scale_layout="column_padded4"),
    ),
    GroupedMatmulDescriptor(
        groups=4, total_num_rows=13, n=24, k=40, dtype="f8_e4m3", layout="masked", scaling=Scaling(kind="token"), add=True
    ),
    GroupedMatmulDescriptor(
        groups=3, total_num_rows=17, n=16, k=48, dtype="f8_e5m2", scaling=Scaling(kind="tensor", weight_starts=(7,))
    ),
    GroupedMatmulDescriptor(groups=3, total_num_rows=19, n=17, k=33, dtype="f32", accumulate=True, beta=0.5),
    GroupedMatmulDescriptor(groups=2, total_num_rows=9, n=5, k=21, dtype="f64", layout="k", bias=True),
    GroupedMatmulDescriptor(groups=3, total_num_rows=11, n=9, k=31, dtype="i8", zero_tail=True),
    GroupedMatmulDescriptor(
        groups=4, total_num_rows=30, n=40, k=160, dtype="bf16", gated=True, activation="silu", gather=True, num_x_rows=9,
        weight_format=Weight(dtype="uint4", group=32, zero="int", dequantise="rounded"),
    ),
    GroupedMatmulDescriptor(
        groups=3, total_num_rows=5, n=24, k=72, dtype="f16", layout="masked", bias=True,
        weight_format=Weight(dtype="f8_e4m3", scale_dtype="f32", global_scale=True),
    ),
    GroupedMatmulDescriptor(
        groups=3, total_num_rows=150, n=136, k=320, dtype="bf16", bias=True, sm_limit=1,
        weight_format=Weight(dtype="f8_e4m3", group=128, scale_dtype="f32", dequantise="rounded"),
    ),
    GroupedMatmulDescriptor(
        groups=3, total_num_rows=70, n=40, k=128, dtype="bf16", gather=True, num_x_rows=30,
        weight_format=Weight(dtype="e2m1", group=32, scale_dtype="f8_e8m0"),
    ),
    GroupedMatmulDescriptor(
        groups=3, total_num_rows=17, n=24, k=64, dtype="f8_e4m3", out_dtype="f8_e4m3", scaling=Scaling(kind="token"),
    ),
)  # fmt: skip
