"""Quant: how elements are quantised, as fields; and the expressions of scales and quotients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from opfacade.core.model import F32_MAX, Model, Real, Size, contradiction
from opfacade.programs.expression import Node, apply
from opfacade.programs.types import LARGEST

Scale = Literal["none", "static", "tensor", "token", "group"]


class Quant(Model):
    """q = x / scale, to the nearest, ties to even, saturating; NaN stays NaN in the 8-bit floats and is 0 in i8.

    scale: "none" is 1; "static" is an operand, f32 [1]; "tensor", "token" and "group" are results: the largest |x| of all
    elements, of a row, or of `group` neighbours of a row, at least `least`, over the largest number of `dtype`.
    scale_dtype: f8_e8m0 rounds that quotient up to a power of two, 2^-127 to 2^127, so that no element of a finite row
    saturates; NaN stays NaN, and the scale of a row with an infinity is 2^127.
    scale_layout: of a scale a group: "row" [total_num_rows, hidden / group], "column" [hidden / group, total_num_rows],
    "column_padded4" the same with the rows rounded up to a multiple of 4, whose last entries are not written.
    """

    dtype: Literal["f8_e4m3", "f8_e5m2", "i8"] = Field(default="f8_e4m3", description="Element type of the result.")
    scale: Scale = Field(default="group", description="What elements are divided by.")
    group: Size = Field(default=128, description="Neighbours of a row that share a scale, with scale group.")
    scale_dtype: Literal["f32", "f8_e8m0"] = Field(
        default="f32", description="Element type of scales; f8_e8m0: powers of two, rounded up."
    )
    scale_layout: Literal["row", "column", "column_padded4"] = Field(
        default="row", description="How scales of groups lie: a row for each row, or for each group."
    )
    least: Annotated[Real, Field(ge=0, le=F32_MAX)] = Field(
        default=1e-10, description="The least of the largest |x| that a scale is made of."
    )

    @model_validator(mode="after")
    def _of_groups(self) -> Quant:
        if self.scale != "group" and self.scale_layout != "row":
            raise contradiction("scale_layout", "row: only scales of groups have a layout", self.scale_layout)
        if self.scale == "none" and self.scale_dtype != "f32":
            raise contradiction("scale_dtype", "f32, its default, without a scale", self.scale_dtype)
        return self

    @property
    def dynamic(self) -> bool:
        """Whether scales are results."""
        return self.scale in ("tensor", "token", "group")

    @property
    def largest(self) -> float:
        return 127.0 if self.dtype == "i8" else LARGEST[self.dtype]

    def scale_of(self, most: Node) -> Node:
        """The scale of elements of which the largest is `most`."""
        found = apply("maximum", most, self.least) / self.largest
        return apply("round_f8_e8m0", found) if self.scale_dtype == "f8_e8m0" else found

    def quotient(self, x: Node, scale: Node | None) -> Node:
        """An element as it is stored. The reciprocal of a power of two is exact, and so is the product: it is the quotient."""
        found = x if scale is None else x * (1.0 / scale) if self.scale_dtype == "f8_e8m0" else x / scale
        return apply("i8", apply("rint", found)) if self.dtype == "i8" else found


def scale_dims(quant: Quant, groups: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The axes of each dimension of the scales, with rows along axis 0. groups: the axes along which groups follow."""
    if quant.scale == "group":
        return ((0,), groups) if quant.scale_layout == "row" else (groups, (0,))
    return ((0,),) if quant.scale == "token" else ((),)


def padded(rows: int, quant: Quant) -> int:
    """Entries of a column of scales."""
    return rows + -rows % 4 if quant.scale_layout == "column_padded4" else rows
