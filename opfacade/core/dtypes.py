"""Element types: names, sizes in bytes, and roundoff."""

from __future__ import annotations

from typing import Literal

DType = Literal["f16", "bf16", "f32", "f8_e4m3", "f8_e5m2"]
ITEMSIZE: dict[str, int] = {"f16": 2, "bf16": 2, "f32": 4, "f8_e4m3": 1, "f8_e5m2": 1, "i32": 4, "u8": 1}

# Unit roundoff and half the smallest subnormal of the storage formats.
ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8, "f8_e4m3": 2.0**-4, "f8_e5m2": 2.0**-3}
UNDERFLOW = {"f32": 2.0**-150, "f16": 2.0**-25, "bf16": 2.0**-134, "f8_e4m3": 2.0**-10, "f8_e5m2": 2.0**-17}
