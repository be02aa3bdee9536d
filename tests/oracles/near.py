"""How a result is compared with the number that its formula gives."""

from dataclasses import dataclass

import torch
from torch import Tensor

# Mantissa bits and smallest normal exponent of each float type.
FLOATS = {
    torch.float64: (52, -1022),
    torch.float32: (23, -126),
    torch.bfloat16: (7, -126),
    torch.float16: (10, -14),
    torch.float8_e4m3fn: (3, -6),
    torch.float8_e5m2: (2, -14),
    torch.float8_e8m0fnu: (0, -127),
}
TYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f8_e4m3": torch.float8_e4m3fn,
    "f8_e5m2": torch.float8_e5m2,
    "f8_e8m0": torch.float8_e8m0fnu,
    "i8": torch.int8,
    "i32": torch.int32,
}
LARGEST = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0, "i8": 127.0}
# An evaluation in f32 rounds by 2^-24. A chain of 16 roundings, or a sum in f64 after fewer, stays within 2^-20 of its terms.
# In f64 sums round too, so there a chain of 64 roundings is allowed.
SLACK = 2.0**-20
SLACK_F64 = 2.0**-47


@dataclass(frozen=True)
class Near:
    """A number before its last rounding. size: the sum of the absolute values of its terms, each times the factor by which the
    formula amplifies a relative error of that term. extra: an absolute error that intermediate roundings of the page cause."""

    value: Tensor
    size: Tensor
    extra: Tensor | float = 0.0

    def tolerance(self, dtype):
        """Half a unit of the stored type at the far end of the error of the formula, and this error."""
        slack = (SLACK_F64 if dtype == torch.float64 else SLACK) * self.size.double() + self.extra
        return slack + half_unit(self.value.double().abs() + slack, dtype)


def half_unit(value, dtype):
    """Half the distance of two numbers of a type in the binade of a value."""
    if dtype not in FLOATS:
        return torch.full_like(value, 0.5)
    bits, low = FLOATS[dtype]
    exponent = (torch.frexp(value.nan_to_num(0.0, 0.0, 0.0)).exponent - 1).clamp(min=low)
    return torch.ldexp(torch.ones_like(value), exponent - bits - 1)


def stored(value, dtype):
    """f64 numbers as the tensor of a type has them: rounded to nearest, and saturated in 8 bits."""
    dtype = TYPES.get(dtype, dtype)
    name = next(name for name, own in TYPES.items() if own == dtype)
    if dtype == torch.int8:
        return value.nan_to_num(0.0).round().clamp(-128, 127).to(dtype)
    top = LARGEST.get(name)
    return (value if top is None else value.clamp(-top, top)).float().to(dtype) if dtype != torch.float64 else value


def rounded(value, error, dtype):
    """(a number with an absolute error after a rounding to a type, its error).

    A rounding is monotone, so the result lies between those of both ends; the error is 0 where both round to the same number.
    """
    low, own, high = (wide(stored(one, dtype)) for one in (value - error, value, value + error))
    return own, torch.maximum(high - own, own - low)


def f32(value):
    """f64 numbers rounded to f32, still as f64."""
    return value.float().double()


def wide(tensor):
    """Any tensor as f64."""
    return tensor.float().double() if tensor.dtype.is_floating_point and tensor.element_size() == 1 else tensor.double()


def over(old, where, new):
    """Near with the values of `new` at an index, and the old contents elsewhere."""
    value, size, extra = wide(old).clone(), torch.zeros(old.shape, dtype=torch.float64), torch.zeros_like(wide(old))
    value[where], size[where], extra[where] = new.value, new.size, new.extra
    return Near(value, size, extra)


def valid(problem, args):
    """The number of valid rows of axis 0; 0 if the operand is out of range."""
    rows = problem.shape[0] if hasattr(problem, "shape") else problem.total_num_rows
    count = int(args.num_valid[0]) if problem.num_valid else rows
    return count if 0 <= count <= rows else 0


def wrong(got, want):
    """The number of elements outside the tolerance; exact unless `want` is Near."""
    if isinstance(want, Tensor):
        if got.dtype != want.dtype or got.shape != want.shape:
            return max(1, got.numel())
        got, want = wide(got), wide(want)
        return int((~((got == want) | (got.isnan() & want.isnan()))).sum())
    if got.shape != want.value.shape:
        return max(1, got.numel())
    value, tolerance = want.value.double(), want.tolerance(got.dtype)
    rounded = value if got.dtype not in FLOATS else wide(value.float().to(got.dtype)) if got.dtype != torch.float64 else value
    value = torch.where(rounded.isinf(), rounded, value)
    got = wide(got)
    near = (got == value) | (got.isnan() & value.isnan()) | ((got - value).abs() <= tolerance)
    return int((~near).sum())
