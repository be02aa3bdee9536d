"""Ways to decode a weight in the tile kernel: the numbers that are wgmma operands, and the factors in the epilogue."""

from __future__ import annotations

from typing import Literal

from opfacade.plans._weights.weight import Weight

# rounded: numbers are rounded to the type of x. whole: the type of x represents them exactly. column: operands are codes, and
# the scale of the column multiplies the sum. halves: a number is exactly the sum of two numbers of that type, each of which is
# multiplied. parts: scales multiply the sums of groups, for 8-bit rows. sums: operands are codes minus their zero points, and
# scales multiply the sums of groups.
Way = Literal["rounded", "whole", "column", "halves", "parts", "sums"]
_SHORT = ("f8_e4m3", "f8_e8m0")  # scale types with significands of at most four bits


def way_of(weight: Weight, dtype: str, sums: bool = False) -> Way | None:
    """The way to decode a weight; None if there is none. dtype: the type of x. sums: whether the kernel can scale sums of
    groups."""
    if dtype == "f8_e4m3":
        return "parts" if weight.dequantise == "group_sum" and weight.zero == "none" else None
    if weight.dequantise == "rounded":
        return "rounded"
    if weight.zero not in ("none", "int"):
        return None
    if weight.group is None and weight.num_groups is None:
        return "column"
    whole = weight.scale_dtype in _SHORT and (dtype == "bf16" or _in_f16(weight))
    if sums and weight.packed and weight.scales_either(dtype) and not (whole and weight.dtype == "e2m1"):
        return "sums"
    if whole:
        return "whole"
    return "halves" if dtype == "bf16" and weight.scale_dtype != "f32" else None


def _in_f16(weight: Weight) -> bool:
    """Whether f16 represents every product of a code and a scale exactly."""
    return weight.scale_dtype == "f8_e4m3" and weight.dtype != "f8_e4m3"


def terms(weight: Weight | None, dtype: str, sums: bool = False) -> int:
    """The number of wgmma operands whose sum is a number of the weight. sums: as in way_of."""
    return 2 if weight is not None and way_of(weight, dtype, sums) == "halves" else 1
