"""Element types: those of torch, and their names in descriptors."""

from __future__ import annotations

from typing import Literal

import torch

from opfacade.compat.refusals import unmapped, wrong

NAMES = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float8_e4m3fn: "f8_e4m3",
    torch.float8_e5m2: "f8_e5m2",
}
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def name_of(op: str, argument: str, dtype: torch.dtype) -> str:
    """The name of a dtype in a descriptor; UnsupportedError names the argument where there is none."""
    name = NAMES.get(dtype)
    if name is None:
        raise unmapped(op, argument, f"one of {', '.join(map(str, NAMES))}", dtype)
    return name


def as_dtype(op: str, argument: str, value: torch.dtype | str | None) -> torch.dtype | None:
    """A dtype that may be given by its name, as in "float16"."""
    found = getattr(torch, value, None) if isinstance(value, str) else value
    if found is not None and not isinstance(found, torch.dtype):
        raise wrong(op, argument, "a dtype of torch or its name", repr(value))
    if isinstance(value, str) and found is None:
        raise wrong(op, argument, "a dtype of torch or its name", repr(value))
    return found


def float_name(op: str, argument: str, x: torch.Tensor) -> str:
    """The name of the dtype of x, which is one that rows are computed in; UnsupportedError names the argument of another."""
    if x.dtype not in FLOATS:
        raise unmapped(op, argument, " or ".join(map(str, FLOATS)), x.dtype)
    return NAMES[x.dtype]


def require_integers(op: str, argument: str, x: torch.Tensor) -> None:
    """ArgumentError names the argument whose elements are no integers: a cast would cut fractions off."""
    if x.dtype not in INTEGERS:
        raise wrong(op, argument, "an integer dtype", x.dtype)


def require_reals(op: str, argument: str, x: torch.Tensor) -> None:
    """The same for elements that are no real numbers, which are truths and complex ones. FlashInfer casts integers too."""
    if x.dtype == torch.bool or x.is_complex():
        raise wrong(op, argument, "a float or integer dtype", x.dtype)


def fp8_name(op: str, argument: str, x: torch.Tensor) -> Literal["f8_e4m3", "f8_e5m2"]:
    """The same for a result of 8 bits."""
    if x.dtype not in FP8:
        raise unmapped(op, argument, " or ".join(map(str, FP8)), x.dtype)
    return "f8_e4m3" if x.dtype == torch.float8_e4m3fn else "f8_e5m2"
