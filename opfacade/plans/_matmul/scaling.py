"""Scaling: the scales of the operands of a product."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from opfacade.core.model import Count, FromList, Size, Written, contradiction

BLOCK = 128  # rows, columns and elements of k that share a scale
MX = 32  # elements of k that share a scale
MAX_STARTS = 15


class Scaling(Written):
    """The product is computed from exactly x * x_scale and weight * weight_scale.

    kind: the kind of x_scale. "tensor": one scale, [1]; "token": one per row, [total_num_rows]; "block": one per 128 elements
    of a row, [total_num_rows, ceil(k / 128)], as Quant writes them; "mx32": one per 32 elements.
    weight_kind: the kind of weight_scale for tensor and token: one scale, or one per column, [n]; null: as kind. For block,
    there is one per block of 128 x 128, [ceil(n / 128), ceil(k / 128)]; for mx32, one per 32 elements of k of a column, [n,
    ceil(k / 32)].
    weight_starts: the columns, in increasing order, at which another scale of weight begins, as in merged weights: [1 +
    len(weight_starts)].
    block_offset: the position of weight in its first block, in n and in k, for a slice of a larger matrix; its scales are
    [ceil((n + offset) / 128), ceil((k + offset) / 128)]. Blocks of x begin at element 0.
    x_zero: x represents (x - x_zero) * x_scale, with an i32 from -128 to 127 for each scale of x, as Quant(zero=True) writes
    them. It is subtracted exactly, by means of the sums of weight over k.
    x_scale_layout: the layout of block scales: "row"; "column" has one row per block; "column_padded4" the same with
    total_num_rows rounded up to a multiple of 4.
    """

    kind: Literal["tensor", "token", "block", "mx32"] = Field(
        description="Number of scales of x: one, one per row, or one per block of k."
    )
    weight_kind: Literal["tensor", "token"] | None = Field(
        default=None, description="Number of scales of weight: one, or one per column; null: as kind."
    )
    weight_starts: Annotated[tuple[Size, ...], FromList, Field(max_length=MAX_STARTS)] = Field(
        default=(), description="Columns of weight at which another scale begins; empty: all columns share one scale."
    )
    block_offset: Annotated[tuple[Count, Count], FromList] = Field(
        default=(0, 0), description="Numbers of columns and elements of k in the first block before weight."
    )
    x_scale_dtype: Literal["f32", "f8_e8m0"] = Field(default="f32", description="Element type of x_scale.")
    weight_scale_dtype: Literal["f32", "f8_e8m0"] = Field(default="f32", description="Element type of weight_scale.")
    x_scale_layout: Literal["row", "column", "column_padded4"] = Field(
        default="row", description="Layout of block scales of x: one row per row of x, or one row per block of k."
    )

    x_zero: bool = Field(default=False, description="Whether i8 x has a zero point for each scale.")

    @model_serializer(mode="wrap")
    def _as_before(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omits a later field at its default, so that older texts and digests stay valid."""
        return {name: value for name, value in fields(self).items() if name != "x_zero" or value}

    @model_validator(mode="after")
    def _consistent(self) -> Scaling:
        if self.weight_kind is not None and self.in_k:
            raise contradiction("weight_kind", f"null with {self.kind}", self.weight_kind)
        if self.weight_starts and self.of_weight != "tensor":
            raise contradiction("weight_starts", "empty, unless weight has a single scale", str(self.weight_starts))
        if sorted(set(self.weight_starts)) != list(self.weight_starts):
            raise contradiction("weight_starts", "rising columns", str(self.weight_starts))
        if self.block_offset != (0, 0) and self.kind != "block":
            raise contradiction("block_offset", "(0, 0), because only block scales have an offset", str(self.block_offset))
        if max(self.block_offset) >= BLOCK:
            raise contradiction("block_offset", f"numbers below {BLOCK}", str(self.block_offset))
        if self.x_scale_layout != "row" and not self.in_k:
            raise contradiction("x_scale_layout", "row, because only block scales have a layout", self.x_scale_layout)
        for field in ("x_scale_dtype", "weight_scale_dtype"):
            if self.kind == "mx32" and getattr(self, field) != "f8_e8m0":
                raise contradiction(field, "f8_e8m0 with mx32", getattr(self, field))
        return self

    @property
    def in_k(self) -> bool:
        """Whether scales vary along k, so that sums are scaled block by block."""
        return self.kind in ("block", "mx32")

    @property
    def of_weight(self) -> str:
        return self.weight_kind or self.kind

    @property
    def part(self) -> int:
        """The number of elements of k that share a scale of x."""
        return MX if self.kind == "mx32" else BLOCK
