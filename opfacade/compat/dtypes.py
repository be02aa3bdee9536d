"""Element types: those of torch, and their names in descriptors."""

from __future__ import annotations

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
