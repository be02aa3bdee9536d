"""Scaling: which factors the numbers of a product stand for, as fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from opfacade.core.model import Count, FromList, Size, Written, contradiction

BLOCK = 128  # rows, columns and elements of k that share a scale
MX = 32  # elements of k that share a scale
MAX_STARTS = 15


class Scaling(Written):
    """x stands for x * x_scale, and weight for weight * weight_scale, exactly.

    kind: of x_scale. "tensor": one, [1]; "token": one a row, [total_num_rows]; "block": one for each 128 elements of a row,
    [total_num_rows, ceil(k / 128)], as Quant writes them; "mx32": one for each 32 elements.
    weight_kind: of weight_scale, for tensor and token: one, or one a column, [n]; null: as kind. block: one for each block of
    128 x 128, [ceil(n / 128), ceil(k / 128)]; mx32: one for each 32 elements of k of a column, [n, ceil(k / 32)].
    weight_starts: the columns, rising, at which another one scale of weight begins, as merged weights have them:
    [1 + len(weight_starts)].
    block_offset: where weight begins inside its first block, in n and in k, for a slice of a larger matrix; its scales are
    [ceil((n + offset) / 128), ceil((k + offset) / 128)]. Parts of x begin with x.
    x_zero: x stands for (x - x_zero) * x_scale, with an i32 from -128 to 127 for each scale of x, as Quant(zero=True) writes
    them. It takes the sums of weight over k, exactly, instead of changing x.
    x_scale_layout: of scales for parts of a row: "row"; "column" with the parts as rows; "column_padded4" the same with
    total_num_rows rounded up to a multiple of 4.
    """

    kind: Literal["tensor", "token", "block", "mx32"] = Field(description="How many scales x has.")
    weight_kind: Literal["tensor", "token"] | None = Field(
        default=None, description="How many scales weight has: one or one a column; null: as kind."
    )
    weight_starts: Annotated[tuple[Size, ...], FromList, Field(max_length=MAX_STARTS)] = Field(
        default=(), description="Columns at which another scale begins; empty: all columns share one."
    )
    block_offset: Annotated[tuple[Count, Count], FromList] = Field(
        default=(0, 0), description="Columns and elements of k of the first block that precede weight."
    )
    x_scale_dtype: Literal["f32", "f8_e8m0"] = Field(default="f32", description="Element type of x_scale.")
    weight_scale_dtype: Literal["f32", "f8_e8m0"] = Field(default="f32", description="Element type of weight_scale.")
    x_scale_layout: Literal["row", "column", "column_padded4"] = Field(
        default="row", description="How scales of parts of rows lie: a row for each row, or for each part."
    )

    x_zero: bool = Field(default=False, description="Whether i8 of x have a zero point for each scale.")

    @model_serializer(mode="wrap")
    def _as_before(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A field that came later is absent at its default, so that older texts and digests hold."""
        return {name: value for name, value in fields(self).items() if name != "x_zero" or value}

    @model_validator(mode="after")
    def _consistent(self) -> Scaling:
        if self.weight_kind is not None and self.in_k:
            raise contradiction("weight_kind", f"null with {self.kind}", self.weight_kind)
        if self.weight_starts and self.of_weight != "tensor":
            raise contradiction("weight_starts", "empty: only one scale of weight is divided", str(self.weight_starts))
        if sorted(set(self.weight_starts)) != list(self.weight_starts):
            raise contradiction("weight_starts", "rising columns", str(self.weight_starts))
        if self.block_offset != (0, 0) and self.kind != "block":
            raise contradiction("block_offset", "(0, 0): only blocks have an offset", str(self.block_offset))
        if max(self.block_offset) >= BLOCK:
            raise contradiction("block_offset", f"numbers below {BLOCK}", str(self.block_offset))
        if self.x_scale_layout != "row" and not self.in_k:
            raise contradiction("x_scale_layout", "row: only scales of parts of rows have a layout", self.x_scale_layout)
        for field in ("x_scale_dtype", "weight_scale_dtype"):
            if self.kind == "mx32" and getattr(self, field) != "f8_e8m0":
                raise contradiction(field, "f8_e8m0 with mx32", getattr(self, field))
        return self

    @property
    def in_k(self) -> bool:
        """Whether scales differ along k, so that sums are scaled part by part."""
        return self.kind in ("block", "mx32")

    @property
    def of_weight(self) -> str:
        return self.weight_kind or self.kind

    @property
    def part(self) -> int:
        """Elements of k that share a scale of x."""
        return MX if self.kind == "mx32" else BLOCK
