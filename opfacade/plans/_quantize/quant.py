"""Quant: how elements are quantised, and the expressions for scales and quotients."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from opfacade.core.model import F32_MAX, FromList, Real, Size, Written, contradiction
from opfacade.programs.expression import Node, apply, constant
from opfacade.programs.types import LARGEST

Scale = Literal["none", "static", "tensor", "token", "group", "block"]
_BLOCK = (128, 128)
_WITH_ZERO = {
    "dtype": ("i8",), "scale": ("static", "tensor", "token", "group"), "scale_dtype": ("f32",), "scale_layout": ("row",),
}  # fmt: skip


class Quant(Written):
    """q = x / scale, rounded to nearest with ties to even, saturating; NaN stays NaN in 8-bit floats and becomes 0 in i8.

    scale: "none" is 1; "static" is an operand, [1]; "tensor", "token", "group" and "block" are computed: the largest |x| of all
    elements, of a row, of `group` adjacent elements of a row, or of a block of a matrix, clamped to [`least`, `most`] and
    divided by the largest number of `dtype`.
    zero: for i8 with an asymmetric range: q = x / scale + zero, where scale is (high - low) / 255 and zero is -128 - low /
    scale, both rounded to nearest. low and high are the smallest and largest of x and 0, clamped to [-`most`, `most`], and high
    - low is at least `least`. There is an i32 zero for each scale; it is an operand if scale is an operand.
    block: rows and columns of a block; blocks at the right and lower edges may be smaller. Their scales are
    [ceil(total_num_rows / rows), ceil(hidden / columns)].
    scale_dtype: f8_e8m0 rounds the scale up to a power of two, 2^-127 to 2^127, so no element of a finite row saturates; NaN
    stays NaN, and the scale of a row with an infinity is 2^127.
    scale_layout: the layout of group scales: "row" [total_num_rows, hidden / group], "column" [hidden / group, total_num_rows],
    "column_padded4" the same with the rows rounded up to a multiple of 4; the padding is not written.
    """

    dtype: Literal["f8_e4m3", "f8_e5m2", "i8"] = Field(default="f8_e4m3", description="Element type of the result.")
    scale: Scale = Field(
        default="group", description="The divisor of the elements: 1, an operand, or computed from the elements."
    )
    group: Size = Field(default=128, description="Number of adjacent elements of a row that share a scale; with scale group.")
    block: Annotated[tuple[Size, Size], FromList] = Field(
        default=_BLOCK, description="Rows and columns of a block that shares a scale; with scale block."
    )
    scale_dtype: Literal["f32", "f8_e8m0"] = Field(
        default="f32", description="Element type of scales; f8_e8m0: powers of two, rounded up."
    )
    scale_layout: Literal["row", "column", "column_padded4"] = Field(
        default="row", description="Layout of group scales: one row per row of x, or one row per group."
    )
    least: Annotated[Real, Field(ge=0, le=F32_MAX)] = Field(
        default=1e-10, description="Lower limit for the largest |x| from which a scale is computed."
    )
    most: Annotated[Real, Field(gt=0, le=F32_MAX)] | None = Field(
        default=None,
        description="Upper limit for the largest |x| from which a scale is computed; larger elements saturate; null: no limit.",
    )

    zero: bool = Field(default=False, description="Whether each scale has a zero point, for an asymmetric range in i8.")

    @model_validator(mode="after")
    def _of_zeros(self) -> Quant:
        if not self.zero:
            return self
        for field, allowed in _WITH_ZERO.items():
            if getattr(self, field) not in allowed:
                raise contradiction(f"{field}", f"{', '.join(allowed)} with zero points", getattr(self, field))
        return self

    @model_validator(mode="after")
    def _of_groups(self) -> Quant:
        if self.scale != "group" and self.scale_layout != "row":
            raise contradiction("scale_layout", "row, because only group scales have a layout", self.scale_layout)
        if self.scale == "none" and self.scale_dtype != "f32":
            raise contradiction("scale_dtype", "f32 (the default), because there is no scale", self.scale_dtype)
        if self.most is not None and (self.scale not in ("tensor", "token", "group") or self.most < self.least):
            expected = f"null, or at least least={self.least} with scale tensor, token or group"
            raise contradiction("most", expected, self.most)
        if self.scale != "block" and self.block != _BLOCK:
            raise contradiction("block", f"{_BLOCK} (the default), because only block scales use it", str(self.block))
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omits a later field at its default, so that older texts and digests stay valid."""
        absent = {"block": self.block == _BLOCK, "most": self.most is None, "zero": not self.zero}
        return {name: value for name, value in fields(self).items() if not absent.get(name)}

    @property
    def dynamic(self) -> bool:
        """Whether scales are results."""
        return self.scale in ("tensor", "token", "group", "block")

    @property
    def largest(self) -> float:
        return 127.0 if self.dtype == "i8" else LARGEST[self.dtype]

    def scale_of(self, most: Node) -> Node:
        """The scale for elements whose largest |x| is `most`."""
        bounded = most if self.most is None else apply("minimum", most, self.most)
        found = apply("maximum", bounded, self.least) / self.largest
        return apply("round_f8_e8m0", found) if self.scale_dtype == "f8_e8m0" else found

    def extremes(self, x: Node) -> tuple[tuple[Literal["min", "max"], Node], ...]:
        """The reducers over the elements that share a scale, each with its value."""
        return (("min", x), ("max", x)) if self.zero else (("max", abs(x)),)

    def range_of(self, low: Node, *high: Node) -> tuple[Node, Node]:
        """The scale and the zero point (an integral f32) for the extremes. Half of the range cannot overflow, and half / 127.5
        equals range / 255."""
        if not high:
            return self.scale_of(low), constant(0.0, "f32")
        bottom, top = apply("minimum", low, 0.0), apply("maximum", high[0], 0.0)
        if self.most is not None:
            bottom, top = apply("maximum", bottom, -self.most), apply("minimum", top, self.most)
        scale = apply("maximum", top * 0.5 - bottom * 0.5, self.least / 2) / 127.5
        return scale, apply("rint", -128.0 - bottom / scale)

    def shifted(self, x: Node, scale: Node, zero: Node) -> Node:
        """The stored value of an element, with a zero point."""
        return apply("i8", apply("rint", x / scale) + zero)

    def quotient(self, x: Node, scale: Node | None) -> Node:
        """The stored value of an element. The reciprocal of a power of two is exact, so the product equals the quotient."""
        found = x if scale is None else x * (1.0 / scale) if self.scale_dtype == "f8_e8m0" else x / scale
        return apply("i8", apply("rint", found)) if self.dtype == "i8" else found


_OWN = "Quantise the result with a descriptor of its own."


def refuse_scale(quant: Quant, rows: int) -> None:
    """Raises for a kind of scale that an op with separate rows does not support."""
    if quant.scale == "block":
        raise contradiction("quant.scale", "none, static, tensor, token or group", quant.scale, _OWN)
    if quant.zero:
        raise contradiction("quant.zero", "False", True, _OWN)
    if quant.scale == "tensor" and rows == 0:
        raise contradiction("total_num_rows", "1 or more with one scale for all rows", 0)


def scale_dims(quant: Quant, groups: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The axes of each dimension of the scales; rows are axis 0. groups: the axes that count groups. Rows and columns of blocks
    are axes 0 and 2."""
    if quant.scale == "block":
        return ((0,), (2,))
    if quant.scale == "group":
        return ((0,), groups) if quant.scale_layout == "row" else (groups, (0,))
    return ((0,),) if quant.scale == "token" else ((),)


def padded(rows: int, quant: Quant) -> int:
    """The number of entries in a column of scales."""
    return rows + -rows % 4 if quant.scale_layout == "column_padded4" else rows
