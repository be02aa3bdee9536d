"""Checkpoints' layouts of 4-bit weights: where each source stores the code of a column and an element of k.

`place` and its inverse `code_at` are formulas of //, % and +, so that they take numbers as well as nodes of a program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from opfacade.core.model import contradiction
from opfacade.core.operands import Dim, TensorSpec
from opfacade.plans._weights.weight import Weight

Source = Literal["gptq", "gptq_v2", "awq", "compressed_tensors", "hqq", "torchao", "tinygemm", "mxfp4", "nvfp4"]
Index: TypeAlias = Any  # an int, or a node of type i64
Place = tuple[tuple[Index, ...], Index]  # indices of a word, and the number of the code in it, lowest bits first
_WIDE = ("f16", "bf16", "f32")
_K = 8  # k is a multiple of it


class Extents(NamedTuple):
    """Sizes that formulas use. group: elements of k per group. row: groups per column. half: half the number of groups."""

    group: Index
    row: Index
    half: Index
    inner: int


class Fields(Protocol):
    """The fields of the descriptors of packing and unpacking."""

    @property
    def op(self) -> str: ...

    @property
    def batch(self) -> int: ...

    def operands(self) -> dict[str, TensorSpec]: ...

    @property
    def source(self) -> Source: ...

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...

    @property
    def inner_k_tiles(self) -> int: ...

    @property
    def weight_format(self) -> Weight: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The layout of a source.

    allowed: the allowed values of fields of `weight_format`. word: the type of a word; codes: the number of codes in it.
    offset: codes are stored with 8 added instead of in two's complement. axes: the axes of stored_weight without the batch.
    scales: the order of axes of stored_scale: groups before n, n before groups, or both in one axis. zeros: the same order for
    zero points of type int, which are packed along n in 32-bit words. zero_less: the number that was subtracted from stored
    zero points, modulo 16.
    """

    allowed: Mapping[str, tuple[Any, ...]]
    axes: Callable[[Fields], tuple[Dim, ...]]
    place: Callable[[Index, Index, Extents], Place]
    code_at: Callable[[tuple[Index, ...], Index, Extents], tuple[Index, Index]]
    word: Literal["i32", "u8"] = "i32"
    offset: bool = False
    scales: Literal["groups_first", "n_first", "rows"] = "groups_first"
    zeros: Literal["groups_first", "n_first"] = "groups_first"
    zeros_interleaved: bool = False
    zero_less: int = 0

    @property
    def codes(self) -> int:
        return 8 if self.word == "i32" else 2


def interleaved(place: Index) -> Index:
    """The code number in an AWQ word for column `place` of eight: even columns come first."""
    return place % 2 * 4 + place // 2


def straight(place: Index) -> Index:
    """The inverse of `interleaved`."""
    return place % 4 * 2 + place // 4


def _of_tinygemm(column: Index, k: Index, e: Extents) -> Place:
    """Tiles of 8 columns and 16 elements of k in the lane layout of mma.m16n8k16; a word has one lane's codes of two tiles."""
    inside = k % (16 * e.inner)
    lane = column % 8 * 4 + k % 8 // 2
    return (column // 8, k // (16 * e.inner), lane, inside // 32), k % 2 * 4 + inside % 32 // 8


def _in_tinygemm(at: tuple[Index, ...], code: Index, e: Extents) -> tuple[Index, Index]:
    column, outer, lane, word = at
    inside = word * 32 + code % 4 * 8 + lane % 4 * 2 + code // 4
    return column * 8 + lane // 4, outer * (16 * e.inner) + inside


def _of_hqq(column: Index, k: Index, e: Extents) -> Place:
    """Each group is a row; the first half of the rows is in the upper bits."""
    row = column * e.row + k // e.group
    return (row % e.half, k % e.group), 1 - row // e.half


def _in_hqq(at: tuple[Index, ...], code: Index, e: Extents) -> tuple[Index, Index]:
    row = (1 - code) * e.half + at[0]
    return row // e.row, row % e.row * e.group + at[1]


_GROUPED: dict[str, tuple[Any, ...]] = {"scale_dtype": _WIDE, "group": (16, 32, 64, 128, None)}
_GPTQ = Stored(
    allowed=_GROUPED | {"dtype": ("uint4",), "zero": ("int",)},
    axes=lambda f: (Dim("k / 8", f.k // 8), Dim("n", f.n)),
    place=lambda column, k, e: ((k // 8, column), k % 8),
    code_at=lambda at, code, e: (at[1], at[0] * 8 + code),
    zero_less=1,
)
_BYTES = Stored(
    allowed=_GROUPED | {"dtype": ("int4",), "zero": ("added",), "num_groups": (None,)},
    axes=lambda f: (Dim("n", f.n), Dim("k / 2", f.k // 2)),
    place=lambda column, k, e: ((column, k // 2), k % 2),
    code_at=lambda at, code, e: (at[0], at[1] * 2 + code),
    word="u8",
)
STORED: Mapping[Source, Stored] = {
    "gptq": _GPTQ,
    "gptq_v2": Stored(allowed=_GPTQ.allowed, axes=_GPTQ.axes, place=_GPTQ.place, code_at=_GPTQ.code_at),
    "awq": Stored(
        allowed={**_GPTQ.allowed, "num_groups": (None,)},
        axes=lambda f: (Dim("k", f.k), Dim("n / 8", f.n // 8)),
        place=lambda column, k, e: ((k, column // 8), interleaved(column % 8)),
        code_at=lambda at, code, e: (at[1] * 8 + straight(code), at[0]),
        zeros_interleaved=True,
    ),
    "compressed_tensors": Stored(
        allowed=_GROUPED | {"dtype": ("int4", "uint4"), "zero": ("none", "int")},
        axes=lambda f: (Dim("n", f.n), Dim("k / 8", f.k // 8)),
        place=lambda column, k, e: ((column, k // 8), k % 8),
        code_at=lambda at, code, e: (at[0], at[1] * 8 + code),
        offset=True,
        scales="n_first",
        zeros="n_first",
    ),
    "hqq": Stored(
        allowed=_GROUPED | {"dtype": ("uint4",), "zero": ("float",), "num_groups": (None,)},
        axes=lambda f: (Dim("n * groups / 2", f.n * groups(f) // 2), Dim("group", f.weight_format.group or f.k)),
        place=_of_hqq,
        code_at=_in_hqq,
        word="u8",
        scales="rows",
    ),
    "torchao": _BYTES,
    "tinygemm": Stored(
        allowed=_BYTES.allowed,
        axes=lambda f: (
            Dim("n / 8", f.n // 8), Dim("k / (16 inner_k_tiles)", f.k // (16 * f.inner_k_tiles)), Dim("32", 32),
            Dim("inner_k_tiles / 2", f.inner_k_tiles // 2),
        ),
        place=_of_tinygemm,
        code_at=_in_tinygemm,
        offset=True,
    ),
    "mxfp4": Stored(
        allowed={"dtype": ("e2m1",), "scale_dtype": ("f8_e8m0",), "group": (32,), "num_groups": (None,)},
        axes=lambda f: (Dim("n", f.n), Dim("k / 32", f.k // 32), Dim("16", 16)),
        place=lambda column, k, e: ((column, k // 32, k % 32 // 2), k % 2),
        code_at=lambda at, code, e: (at[0], at[1] * 32 + at[2] * 2 + code),
        word="u8",
        scales="n_first",
    ),
    "nvfp4": Stored(
        allowed={"dtype": ("e2m1",), "scale_dtype": ("f8_e4m3",), "group": (16,), "num_groups": (None,)},
        axes=_BYTES.axes,
        place=_BYTES.place,
        code_at=_BYTES.code_at,
        word="u8",
        scales="n_first",
    ),
}  # fmt: skip


def groups(fields: Fields) -> int:
    """Number of scales per column."""
    return fields.weight_format.groups(fields.k)


def flip(fields: Fields) -> int:
    """The XOR mask between stored codes and ours: 8 converts an offset of 8 to two's complement."""
    return 8 if STORED[fields.source].offset and fields.weight_format.dtype == "int4" else 0


def zero_axes(fields: Fields) -> tuple[Dim, ...]:
    """Axes of stored_zero."""
    stored, words, many = STORED[fields.source], Dim("n / 8", fields.n // 8), Dim("groups", groups(fields))
    if fields.weight_format.zero != "int":
        return scale_axes(fields)
    return (many, words) if stored.zeros == "groups_first" else (words, many)


def scale_axes(fields: Fields) -> tuple[Dim, ...]:
    """Axes of stored_scale."""
    n, many, form = Dim("n", fields.n), Dim("groups", groups(fields)), STORED[fields.source].scales
    if form == "rows":
        return (Dim("n * groups", fields.n * groups(fields)), Dim("1", 1))
    return (many, n) if form == "groups_first" else (n, many)


def refuse(fields: Fields) -> None:
    """Raises the first contradiction between sizes, format and source."""
    weight, source = fields.weight_format, fields.source
    for field, choices in STORED[source].allowed.items():
        if getattr(weight, field) not in choices:
            told = ", ".join("null" if one is None else str(one) for one in choices)
            raise contradiction(f"weight_format.{field}", f"{told} with source={source}", getattr(weight, field))
    if weight.group_offset:
        hint = "Pack the whole matrix; a slice of it is a view of the packed weight and of its scales."
        raise contradiction("weight_format.group_offset", "0", weight.group_offset, hint)
    for name, step in _steps(fields).items():
        if getattr(fields, name) % step:
            raise contradiction(name, f"a multiple of {step} with source={source}", getattr(fields, name))


def _steps(fields: Fields) -> dict[str, int]:
    """The numbers that n and k must be multiples of."""
    weight, found = fields.weight_format, {"n": 1, "k": _K}
    if fields.source in ("awq", "tinygemm") or weight.zero == "int":
        found["n"] = 8
    if fields.source == "tinygemm":
        found["k"] = 16 * fields.inner_k_tiles
    if fields.source == "hqq":
        found |= {"n": 2, "k": weight.group or 1}
    if fields.source in ("mxfp4", "nvfp4"):
        found["k"] = weight.group or 1
    return found
