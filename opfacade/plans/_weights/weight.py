"""Weight: the format of a weight with fewer bits than the rows, which have 16 or more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import Field, model_validator

from opfacade.core.model import Count, Size, Written, contradiction
from opfacade.plans._matmul.scaling import Scaling

if TYPE_CHECKING:
    from torch import Tensor

WIDE = ("f16", "bf16", "f32")  # element types of x
_NARROW = "f8_e4m3"  # type of x that is quantised with separate scales
_CODES = {"int4": (-8, 7), "uint4": (0, 15)}  # ranges of codes that may have zero points


class Weight(Written):
    """An element of weight represents (code - zero) * scale, times the global scale, with one scale per `group` elements of k.

    dtype: "int4", two's complement, "uint4" and "e2m1" have two codes per byte, with the code of the lower k in the low bits:
    weight is u8 [n, ceil(k / 2)], and for odd k the last code is ignored. The low three bits of an e2m1 code select 0, 0.5, 1,
    1.5, 2, 3, 4 or 6, and the highest bit is the sign. "f8_e4m3" has one byte per code, [n, k].
    group: the number of elements of k that share a scale; null: all. weight_scale [n, groups]. group_offset: the position of
    element 0 in the first group, for a slice of a larger matrix. num_groups: the number of groups, where element j belongs to
    group weight_groups[j], in any order, as in GPTQ's activation order; a slice has the whole table.
    zero: with "int", weight_zero is a u8 code without sign, at most 127, and the numbers of a group with a larger one are
    undefined (OPFACADE_VALIDATE=indices refuses it); with "float", it has the type of the scales, as in
    HQQ; with "added", an element represents code * scale + zero, as in torchao; with "none", zero is 0.
    dequantise: "exact" and "group_sum" multiply x by these numbers without rounding them, and "group_sum" may scale the sums of
    groups instead; "rounded" computes each number in f32 and rounds it to the type of x, as most libraries do.
    If x has 16 or more bits, groups are consecutive and zero is "none" or "int", "exact" may scale the sums of groups in f32
    too. A scale of such a group that is infinite or NaN then makes the sum of its column infinite or NaN, in every row.
    Unless it is rounded, a column with one scale is the sum of its products with codes, times that scale, and a global scale
    is a factor of the sum too; with "added" the global scale alone. With group_sum and x in f8_e4m3, the scale of a group is a
    factor of the sum of that group. These factors are applied as IEEE defines it: an infinite scale gives an infinity with the
    sign of the sum, or NaN if the sum is 0.
    If x is f8_e4m3, `scaling` has the scales of x alone, and "rounded" is refused, because e4m3 has too few bits for numbers.
    """

    dtype: Literal["int4", "uint4", "e2m1", "f8_e4m3"] = Field(description="Codes of weight.")
    group: Literal[16, 32, 64, 128] | None = Field(
        default=None, description="Number of elements of k that share a scale; null: all."
    )
    group_offset: Count = Field(default=0, description="Number of elements of k in the first group before weight.")
    num_groups: Size | None = Field(
        default=None, description="Number of groups of the operand weight_groups; null: groups are consecutive."
    )
    scale_dtype: Literal["f32", "bf16", "f16", "f8_e4m3", "f8_e8m0"] = Field(
        default="bf16", description="Element type of weight_scale."
    )
    zero: Literal["none", "int", "float", "added"] = Field(default="none", description="What weight_zero is.")
    global_scale: bool = Field(default=False, description="Whether the operand weight_global multiplies the whole weight.")
    dequantise: Literal["exact", "group_sum", "rounded"] = Field(
        default="exact", description="Whether the numbers that codes represent are rounded before the product."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Weight:
        if self.zero != "none" and self.dtype not in _CODES:
            raise contradiction("zero", f"none for {self.dtype}, which has a sign", self.zero)
        if self.zero == "int" and self.dtype == "int4":
            raise contradiction("zero", "none, float or added for int4, because codes of zero points have no sign", self.zero)
        if self.zero in ("float", "added") and self.scale_dtype == "f8_e8m0":
            raise contradiction("scale_dtype", f"a valid type of zero points for zero={self.zero}", self.scale_dtype)
        if self.num_groups is not None and (self.group is not None or self.group_offset):
            raise contradiction(
                "num_groups", "null with group or group_offset, because weight_groups assigns the groups", self.num_groups
            )
        if self.group_offset >= (self.group or 1):
            raise contradiction(
                "group_offset", f"below {self.group or 1}, the number of elements of a group", self.group_offset
            )
        return self

    @property
    def packed(self) -> bool:
        """Whether a byte contains two codes."""
        return self.dtype != "f8_e4m3"

    @property
    def scales_columns(self) -> bool:
        """Whether one scale of a column multiplies its sum."""
        one = self.group is None and self.num_groups is None
        return one and self.dequantise != "rounded" and self.zero != "added"

    @property
    def scales_all(self) -> bool:
        """Whether the global scale multiplies sums."""
        return self.global_scale and self.dequantise != "rounded"

    def scales_groups(self, dtype: str) -> bool:
        """Whether scales multiply the sums of their groups. dtype: of x."""
        return dtype == _NARROW and self.dequantise == "group_sum" and self.zero != "added"

    def scales_either(self, dtype: str) -> bool:
        """Whether the scale of a group multiplies either the sum of the group or its numbers. dtype: of x."""
        whole = self.dequantise != "rounded" and self.zero in ("none", "int")
        return whole and dtype != _NARROW and self.group is not None

    def groups(self, k: int) -> int:
        """Scales of a column."""
        if self.num_groups is not None:
            return self.num_groups
        return 1 if self.group is None else -(-(k + self.group_offset) // self.group)


class Product(Protocol):
    """The fields of a product that must be compatible with a weight."""

    @property
    def dtype(self) -> str: ...

    @property
    def scaling(self) -> Scaling | None: ...

    @property
    def weight_layout(self) -> str: ...


def refuse(problem: Product, weight: Weight) -> None:
    """Raises the first contradiction between a product and its weight."""
    if problem.dtype not in (*WIDE, _NARROW):
        raise contradiction("dtype", f"{', '.join((*WIDE, _NARROW))} with weight_format", problem.dtype)
    if problem.scaling is not None:
        _refuse_scaling(problem.scaling)
    if problem.dtype == _NARROW and weight.dequantise == "rounded":
        raise contradiction("weight_format.dequantise", f"group_sum or exact for {_NARROW}", weight.dequantise)
    if problem.weight_layout != "nk":
        raise contradiction("weight_layout", "nk with weight_format", problem.weight_layout)
    wide = weight.global_scale or weight.scale_dtype not in ("f16", "f8_e4m3")
    if weight.dequantise == "rounded" and problem.dtype == "f16" and wide:
        given = f"{weight.scale_dtype} scales{', a global one' * weight.global_scale}"
        raise contradiction("weight_format.dequantise", "exact or group_sum for f16 with scales outside its range", given)


def _refuse_scaling(scaling: Scaling) -> None:
    """Checks scales of x: one, or one per row; the scales of the weight are separate operands."""
    if scaling.in_k:
        raise contradiction("scaling.kind", "tensor or token with weight_format", scaling.kind)
    plain = {"weight_kind": None, "weight_starts": (), "weight_scale_dtype": "f32", "x_zero": False}
    for field, only in plain.items():
        if getattr(scaling, field) != only:
            expected = f"{only} (the default) with weight_format, which has its own scales"
            raise contradiction(f"scaling.{field}", expected, getattr(scaling, field))


Wrong = tuple["Tensor", str]


def wrong_values(name: str, tensor: Tensor, found: Wrong | None) -> Wrong | None:
    """`Descriptor.wrong_values` of scales and zero points: scales of 0, and zero points that are not codes.

    name: the operand. found: the result of the base class.
    """
    if name.endswith(("_scale", "_global")) and found is not None:
        whole = tensor.float() if tensor.itemsize == 1 else tensor
        return found[0] | (whole == 0), "finite values other than 0"
    if name.endswith("_zero") and not tensor.is_floating_point() and tensor.itemsize == 1:
        return tensor > _CODES["uint4"][1], "a code of four bits, 0 to 15"
    return found
