"""The computation types of nodes, and the computation type of each storage type.

f16, bf16 and the 8-bit floats are only storage types: a load widens them exactly to f32, and a store rounds an f32 once to
nearest. A store to f8_e8m0, whose numbers are powers of two, rounds up.
"""

from __future__ import annotations

from typing import Literal

Type = Literal["bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64"]

SIGNED: tuple[Type, ...] = ("i8", "i16", "i32", "i64")
UNSIGNED: tuple[Type, ...] = ("u8", "u16", "u32", "u64")
INTEGERS: tuple[Type, ...] = (*SIGNED, *UNSIGNED)
FLOATS: tuple[Type, ...] = ("f32", "f64")
NUMBERS: tuple[Type, ...] = (*INTEGERS, *FLOATS)
TYPES: tuple[Type, ...] = ("bool", *NUMBERS)
NARROW = ("f16", "bf16", "f8_e4m3", "f8_e5m2")  # a store of an f32 rounds to the nearest
ROUNDED = (*NARROW, "f8_e8m0")  # all types to which a store rounds an f32
SATURATING = ("f8_e4m3", "f8_e5m2")  # values above the largest finite number, infinity included, saturate

_WIDE: dict[str, Type] = {**dict.fromkeys((*NARROW, "f8_e8m0"), FLOATS[0]), **{name: name for name in TYPES}}
LEAST_POWER = 2.0**-127  # smallest f8_e8m0 number; the type has neither 0 nor a sign
LARGEST = {
    "f16": 65504.0, "bf16": (2 - 2.0**-7) * 2.0**127, "f8_e4m3": 448.0, "f8_e5m2": 57344.0,
    "f8_e8m0": 2.0**127, "f32": (2 - 2.0**-23) * 2.0**127, "f64": (2 - 2.0**-52) * 2.0**1023,
}  # fmt: skip


def widened(dtype: str) -> Type:
    """The computation type of a storage type. Raises KeyError for an unknown dtype."""
    return _WIDE[dtype]


def storable(dtype: str) -> Type | None:
    """The type of values that a store rounds to nearest in `dtype`; None for f8_e8m0 and for unknown dtypes."""
    return None if dtype == "f8_e8m0" else _WIDE.get(dtype)


def bits_of(integer: str) -> int:
    return int(integer[1:])


def range_of(integer: str) -> tuple[int, int]:
    """The smallest and the largest number of an integer type."""
    bits = bits_of(integer)
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if integer[0] == "i" else (0, 2**bits - 1)
