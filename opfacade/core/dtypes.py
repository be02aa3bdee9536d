"""Element types: one table of names, sizes, DLPack codes, torch names and rounding of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import torch

DType = Literal[
    "f16", "bf16", "f32", "f64", "f8_e4m3", "f8_e5m2", "f8_e8m0",
    "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool",
]  # fmt: skip
# The floating types that programs compute with.
RealDType = Literal["f16", "bf16", "f32", "f64"]
# The floating types that attention and its caches store.
FloatDType = Literal["f16", "bf16", "f32", "f8_e4m3", "f8_e5m2"]


class DTypeFacts(NamedTuple):
    """One element type.

    bits: size of an element in memory; a packed 4-bit type is stored as u8. torch: the attribute of the torch module.
    dlpack_code: DLDataTypeCode. roundoff: unit roundoff u, half the distance from 1 to the next number. underflow: half the
    smallest subnormal. Both are 0 for integers, which do not round, and for f8_e8m0, which has only powers of two.
    """

    bits: int
    torch: str
    dlpack_code: int
    roundoff: float = 0.0
    underflow: float = 0.0

    @property
    def is_float(self) -> bool:
        """Whether torch permits a gradient for this type."""
        return self.dlpack_code not in (_INT, _UINT, _BOOL)


_INT, _UINT, _FLOAT, _BFLOAT, _BOOL, _E4M3FN, _E5M2, _E8M0FNU = 0, 1, 2, 4, 6, 10, 12, 14

DTYPES: dict[str, DTypeFacts] = {
    "f16": DTypeFacts(16, "float16", _FLOAT, 2.0**-11, 2.0**-25),
    "bf16": DTypeFacts(16, "bfloat16", _BFLOAT, 2.0**-8, 2.0**-134),
    "f32": DTypeFacts(32, "float32", _FLOAT, 2.0**-24, 2.0**-150),
    "f64": DTypeFacts(64, "float64", _FLOAT, 2.0**-53, 2.0**-1074),  # half of the smallest subnormal is not representable
    "f8_e4m3": DTypeFacts(8, "float8_e4m3fn", _E4M3FN, 2.0**-4, 2.0**-10),
    "f8_e5m2": DTypeFacts(8, "float8_e5m2", _E5M2, 2.0**-3, 2.0**-17),
    "f8_e8m0": DTypeFacts(8, "float8_e8m0fnu", _E8M0FNU),
    "i8": DTypeFacts(8, "int8", _INT),
    "i16": DTypeFacts(16, "int16", _INT),
    "i32": DTypeFacts(32, "int32", _INT),
    "i64": DTypeFacts(64, "int64", _INT),
    "u8": DTypeFacts(8, "uint8", _UINT),
    "u16": DTypeFacts(16, "uint16", _UINT),
    "u32": DTypeFacts(32, "uint32", _UINT),
    "u64": DTypeFacts(64, "uint64", _UINT),
    "bool": DTypeFacts(8, "bool", _BOOL),
}

ITEMSIZE = {name: facts.bits // 8 for name, facts in DTYPES.items()}
ROUNDOFF = {name: facts.roundoff for name, facts in DTYPES.items() if facts.roundoff}
UNDERFLOW = {name: facts.underflow for name, facts in DTYPES.items() if facts.roundoff}


_NAMES = {facts.torch: name for name, facts in DTYPES.items()}


def named(dtype: object) -> object:
    """The element type of a torch dtype; any other value is returned unchanged. Does not import torch."""
    kind = type(dtype)
    of_torch = (kind.__module__, kind.__name__) == ("torch", "dtype")
    return _NAMES.get(str(dtype).removeprefix("torch."), dtype) if of_torch else dtype


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of an element type."""
    import torch

    found: torch.dtype = getattr(torch, DTYPES[name].torch)
    return found
