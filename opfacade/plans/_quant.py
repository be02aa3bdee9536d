"""Quant: how elements are quantised, as fields; and the expressions of scales and quotients."""

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
    """q = x / scale, to the nearest, ties to even, saturating; NaN stays NaN in the 8-bit floats and is 0 in i8.

    scale: "none" is 1; "static" is an operand, [1]; "tensor", "token", "group" and "block" are results: the largest |x| of all
    elements, of a row, of `group` neighbours of a row, or of a block of a matrix, at least `least` and at most `most`, over the
    largest number of `dtype`.
    zero: of i8, over a range that need not lie evenly about 0: q = x / scale + zero, where scale is (high - low) / 255 and zero
    is -128 - low / scale, both to the nearest. low and high are the least and the largest x and 0, at least -`most` and at most
    `most`, and `least` is the least of high - low. zero is an i32 for each scale, an operand where scale is one.
    block: rows and columns of a block; those at the right and lower edge may be smaller. Its scales are
    [ceil(total_num_rows / rows), ceil(hidden / columns)].
    scale_dtype: f8_e8m0 rounds that quotient up to a power of two, 2^-127 to 2^127, so that no element of a finite row
    saturates; NaN stays NaN, and the scale of a row with an infinity is 2^127.
    scale_layout: of a scale a group: "row" [total_num_rows, hidden / group], "column" [hidden / group, total_num_rows],
    "column_padded4" the same with the rows rounded up to a multiple of 4, whose last entries are not written.
    """

    dtype: Literal["f8_e4m3", "f8_e5m2", "i8"] = Field(default="f8_e4m3", description="Element type of the result.")
    scale: Scale = Field(default="group", description="What elements are divided by.")
    group: Size = Field(default=128, description="Neighbours of a row that share a scale, with scale group.")
    block: Annotated[tuple[Size, Size], FromList] = Field(
        default=_BLOCK, description="Rows and columns that share a scale, with scale block."
    )
    scale_dtype: Literal["f32", "f8_e8m0"] = Field(
        default="f32", description="Element type of scales; f8_e8m0: powers of two, rounded up."
    )
    scale_layout: Literal["row", "column", "column_padded4"] = Field(
        default="row", description="How scales of groups lie: a row for each row, or for each group."
    )
    least: Annotated[Real, Field(ge=0, le=F32_MAX)] = Field(
        default=1e-10, description="The least of the largest |x| that a scale is made of."
    )
    most: Annotated[Real, Field(gt=0, le=F32_MAX)] | None = Field(
        default=None, description="The most of the largest |x| that a scale is made of, larger elements saturate; null: none."
    )

    zero: bool = Field(default=False, description="Whether each scale has a zero point, so that i8 holds an uneven range.")

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
            raise contradiction("scale_layout", "row: only scales of groups have a layout", self.scale_layout)
        if self.scale == "none" and self.scale_dtype != "f32":
            raise contradiction("scale_dtype", "f32, its default, without a scale", self.scale_dtype)
        if self.most is not None and (self.scale not in ("tensor", "token", "group") or self.most < self.least):
            expected = f"null, or at least least={self.least} with scale tensor, token or group"
            raise contradiction("most", expected, self.most)
        if self.scale != "block" and self.block != _BLOCK:
            raise contradiction("block", f"{_BLOCK}, its default: only scales of blocks have one", str(self.block))
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A field that came later is absent at its default, so that older texts and digests hold."""
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
        """The scale of elements of which the largest is `most`."""
        bounded = most if self.most is None else apply("minimum", most, self.most)
        found = apply("maximum", bounded, self.least) / self.largest
        return apply("round_f8_e8m0", found) if self.scale_dtype == "f8_e8m0" else found

    def extremes(self, x: Node) -> tuple[tuple[Literal["min", "max"], Node], ...]:
        """The reducers of the elements that share a scale, each with its value."""
        return (("min", x), ("max", x)) if self.zero else (("max", abs(x)),)

    def range_of(self, low: Node, *high: Node) -> tuple[Node, Node]:
        """Scale and zero point, an integral f32, of the extremes. Half of the range never overflows, and its quotient by 127.5
        is that of the whole by 255."""
        if not high:
            return self.scale_of(low), constant(0.0, "f32")
        bottom, top = apply("minimum", low, 0.0), apply("maximum", high[0], 0.0)
        if self.most is not None:
            bottom, top = apply("maximum", bottom, -self.most), apply("minimum", top, self.most)
        scale = apply("maximum", top * 0.5 - bottom * 0.5, self.least / 2) / 127.5
        return scale, apply("rint", -128.0 - bottom / scale)

    def shifted(self, x: Node, scale: Node, zero: Node) -> Node:
        """An element as it is stored, with a zero point."""
        return apply("i8", apply("rint", x / scale) + zero)

    def quotient(self, x: Node, scale: Node | None) -> Node:
        """An element as it is stored. The reciprocal of a power of two is exact, and so is the product: it is the quotient."""
        found = x if scale is None else x * (1.0 / scale) if self.scale_dtype == "f8_e8m0" else x / scale
        return apply("i8", apply("rint", found)) if self.dtype == "i8" else found


_OWN = "Quantise the result with a descriptor of its own."


def refuse_scale(quant: Quant, rows: int) -> None:
    """Raises the contradiction of a scale that an op with rows of its own results does not have."""
    if quant.scale == "block":
        raise contradiction("quant.scale", "none, static, tensor, token or group", quant.scale, _OWN)
    if quant.zero:
        raise contradiction("quant.zero", "False", True, _OWN)
    if quant.scale == "tensor" and rows == 0:
        raise contradiction("total_num_rows", "1 or more with one scale of all rows", 0)


def scale_dims(quant: Quant, groups: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The axes of each dimension of the scales, with rows along axis 0. groups: the axes along which groups follow.
    Rows and columns of blocks are axes 0 and 2."""
    if quant.scale == "block":
        return ((0,), (2,))
    if quant.scale == "group":
        return ((0,), groups) if quant.scale_layout == "row" else (groups, (0,))
    return ((0,),) if quant.scale == "token" else ((),)


def padded(rows: int, quant: Quant) -> int:
    """Entries of a column of scales."""
    return rows + -rows % 4 if quant.scale_layout == "column_padded4" else rows
