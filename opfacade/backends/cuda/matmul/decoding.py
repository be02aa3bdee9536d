"""How the kernel of tiles decodes a weight: which numbers are operands of wgmma, and which factors are in the epilogue."""

from __future__ import annotations

from typing import Literal

from opfacade.plans._weights.weight import Weight

# rounded: a number is rounded to the type of x. whole: the type of x has the number. column: it has the code, and the scale of
# the column multiplies the sum. halves: a number is a sum of two of that type, exactly, and its products follow each other.
# parts: numbers are scaled as sums of groups, for rows of 8 bits.
Way = Literal["rounded", "whole", "column", "halves", "parts"]
_SHORT = ("f8_e4m3", "f8_e8m0")  # scales of at most four bits


def way_of(weight: Weight, dtype: str) -> Way | None:
    """None: there is none. dtype: of x."""
    if dtype == "f8_e4m3":
        return "parts" if weight.dequantise == "group_sum" and weight.zero == "none" else None
    if weight.dequantise == "rounded":
        return "rounded"
    if weight.zero not in ("none", "int"):
        return None
    if weight.group is None and weight.num_groups is None:
        return "column"
    if weight.scale_dtype in _SHORT and (dtype == "bf16" or _in_f16(weight)):
        return "whole"
    return "halves" if dtype == "bf16" and weight.scale_dtype != "f32" else None


def _in_f16(weight: Weight) -> bool:
    """Whether f16 has every product of a code and a scale."""
    return weight.scale_dtype == "f8_e4m3" and weight.dtype != "f8_e4m3"


def terms(weight: Weight | None, dtype: str) -> int:
    """Operands of wgmma that a number is the sum of."""
    return 2 if weight is not None and way_of(weight, dtype) == "halves" else 1
