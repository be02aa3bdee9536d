"""Element types of torch and their names in descriptors."""

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
    """The name of a dtype in a descriptor. UnsupportedError, with the argument's name, if the dtype has no name."""
    name = NAMES.get(dtype)
    if name is None:
        raise unmapped(op, argument, f"one of {', '.join(map(str, NAMES))}", dtype)
    return name


def as_dtype(op: str, argument: str, value: torch.dtype | str | None) -> torch.dtype | None:
    """Converts a dtype or its name, such as "float16", to a dtype."""
    found = getattr(torch, value, None) if isinstance(value, str) else value
    if found is not None and not isinstance(found, torch.dtype):
        raise wrong(op, argument, "a torch dtype or its name", repr(value))
    if isinstance(value, str) and found is None:
        raise wrong(op, argument, "a torch dtype or its name", repr(value))
    return found


def float_name(op: str, argument: str, x: torch.Tensor) -> str:
    """The name of the dtype of x; UnsupportedError, with the argument's name, if rows cannot be computed in this dtype."""
    if x.dtype not in FLOATS:
        raise unmapped(op, argument, " or ".join(map(str, FLOATS)), x.dtype)
    return NAMES[x.dtype]


def require_integers(op: str, argument: str, x: torch.Tensor) -> None:
    """ArgumentError, with the argument's name, if elements are not integers, because a cast would truncate them."""
    if x.dtype not in INTEGERS:
        raise wrong(op, argument, "an integer dtype", x.dtype)


def require_reals(op: str, argument: str, x: torch.Tensor) -> None:
    """ArgumentError if elements are bools or complex numbers. Integers are allowed, because FlashInfer casts them too."""
    if x.dtype == torch.bool or x.is_complex():
        raise wrong(op, argument, "a float or integer dtype", x.dtype)


def fp8_name(op: str, argument: str, x: torch.Tensor) -> Literal["f8_e4m3", "f8_e5m2"]:
    """The name of an fp8 dtype in a descriptor; UnsupportedError for any other dtype."""
    if x.dtype not in FP8:
        raise unmapped(op, argument, " or ".join(map(str, FP8)), x.dtype)
    return "f8_e4m3" if x.dtype == torch.float8_e4m3fn else "f8_e5m2"
