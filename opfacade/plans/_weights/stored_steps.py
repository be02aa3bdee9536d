"""Packing and unpacking as maps: a program reads the codes of each word from their positions in the other layout."""

from __future__ import annotations

from collections.abc import Sequence

from opfacade.core.dtypes import DType
from opfacade.plans._composites.steps import Step, problem
from opfacade.plans._weights.stored import STORED, Extents, Fields, Place, flip, groups, interleaved, straight
from opfacade.programs.expression import Node, apply, constant, coord, read, scalar
from opfacade.programs.fields import Input, Number, Output
from opfacade.programs.types import widened

_HALVES = 2  # codes per byte in our layout


class Made:
    """The map that writes one tensor, from the elements of another at computed positions."""

    def __init__(self, fields: Fields, stored_shape: Sequence[int], our_shape: Sequence[int], shared: bool = False) -> None:
        self.fields, self.batch = fields, fields.batch > 1 and not shared
        lead = (fields.batch,) * self.batch
        self.stored_shape, self.our_shape = (*lead, *stored_shape), (*lead, *our_shape)

    def axis(self, number: int) -> Node:
        """The position of the result along an axis; axis 0 is the first one after the batch axis."""
        return coord(number + self.batch)

    def at(self, name: str, dtype: DType, place: Sequence[Node]) -> Node:
        lead = (coord(0),) * self.batch
        return read(name, widened(dtype), (*lead, *place))

    def step(self, name: str, dtypes: tuple[DType, DType], value: Node, numbers: tuple[Number, ...] = ()) -> Step:
        """The step of one map. name: the tensor without its prefix. dtypes: of the tensor that is read, and of the one that is
        written."""
        packs = self.fields.op == "pack_weights"
        from_shape, to_shape = (self.stored_shape, self.our_shape) if packs else (self.our_shape, self.stored_shape)
        source, target = (f"stored_{name}", ours(name)) if packs else (ours(name), f"stored_{name}")
        given = Input(name="given", dtype=dtypes[0], shape=from_shape)
        made = Output(name="made", dtype=dtypes[1], value=value)
        plan = problem("map", shape=to_shape, inputs=(given,), scalars=numbers, outputs=(made,))
        return Step(name, plan, {"in_0": source, "out_0": target})


def ours(name: str) -> str:
    return "weight" if name == "weight" else f"weight_{name}"


def steps(fields: Fields) -> tuple[Step, ...]:
    packs, weight = fields.op == "pack_weights", fields.weight_format
    found = [_packed(fields) if packs else _unpacked(fields), _copied(fields, "scale")]
    if weight.zero == "int":
        found.append(_packed_zeros(fields) if packs else _unpacked_zeros(fields))
    elif weight.zero != "none":
        found.append(_copied(fields, "zero"))
    if weight.num_groups is not None:
        found.append(_copied_groups(fields))
    return tuple(found)


def _extents(fields: Fields) -> tuple[Extents, tuple[Number, ...]]:
    """Sizes as scalars of the plan, so that they are not compiled into the kernel."""
    if fields.source != "hqq":
        return Extents(fields.weight_format.group, 0, 0, fields.inner_k_tiles), ()
    group, row = fields.weight_format.group or fields.k, groups(fields)
    sizes = {"group": group, "row": row, "half": max(1, fields.n * row // 2)}
    numbers = tuple(Number(name=name, value=size, type="i64") for name, size in sizes.items())
    return Extents(scalar("group", "i64"), scalar("row", "i64"), scalar("half", "i64"), fields.inner_k_tiles), numbers


def _code(word: Node, nibble: Node | int) -> Node:
    """One code of a word, as i32."""
    shift = apply("i32", nibble * 4) if isinstance(nibble, Node) else constant(4 * nibble, "i32")
    return apply("shr", word if word.type == "i32" else apply("i32", word), shift) & 15


def _word(codes: Sequence[Node], dtype: DType) -> Node:
    """The word of some codes, the first in the lowest bits."""
    found = codes[0]
    for at, code in enumerate(codes[1:], 1):
        found = found | apply("shl", code, constant(4 * at, "i32"))
    return found if dtype == "i32" else apply("u8", found)


def _packed(fields: Fields) -> Step:
    stored, (extents, numbers) = STORED[fields.source], _extents(fields)
    made = _made(fields)
    codes = []
    for half in range(_HALVES):
        at, code = _as_nodes(stored.place(made.axis(0), made.axis(1) * _HALVES + half, extents))
        codes.append(_code(made.at("given", stored.word, at), code) ^ flip(fields))
    return made.step("weight", (stored.word, "u8"), _word(codes, "u8"), numbers)


def _unpacked(fields: Fields) -> Step:
    stored, (extents, numbers) = STORED[fields.source], _extents(fields)
    made, codes = _made(fields), []
    at = tuple(made.axis(axis) for axis in range(len(stored.axes(fields))))
    for code in range(stored.codes):
        column, k = stored.code_at(at, code, extents)
        codes.append(_code(made.at("given", "u8", (column, k // _HALVES)), k % _HALVES) ^ flip(fields))
    return made.step("weight", ("u8", stored.word), _word(codes, stored.word), numbers)


def _made(fields: Fields) -> Made:
    return Made(fields, _sizes(fields, "stored_weight"), (fields.n, fields.k // 2))


def _sizes(fields: Fields, name: str) -> list[int]:
    """The sizes of an operand after the batch axis."""
    shape = fields.operands()[name].shape
    return [dim.size or 0 for dim in shape[fields.batch > 1 :]]


def _as_nodes(place: Place) -> tuple[tuple[Node, ...], Node | int]:
    return tuple(one if isinstance(one, Node) else constant(one, "i64") for one in place[0]), place[1]


def _packed_zeros(fields: Fields) -> Step:
    stored, made = STORED[fields.source], _of_table(fields, "zero")
    column, group = made.axis(0), made.axis(1)
    nibble = interleaved(column % 8) if stored.zeros_interleaved else column % 8
    word = made.at("given", "i32", (group, column // 8) if stored.zeros == "groups_first" else (column // 8, group))
    return made.step("zero", ("i32", "u8"), apply("u8", _code(word, nibble) + stored.zero_less & 15))


def _unpacked_zeros(fields: Fields) -> Step:
    stored, made = STORED[fields.source], _of_table(fields, "zero")
    first = stored.zeros == "groups_first"
    word, group = made.axis(1 if first else 0), made.axis(0 if first else 1)
    codes = []
    for code in range(8):
        column = word * 8 + (straight(code) if stored.zeros_interleaved else code)
        zero = apply("i32", made.at("given", "u8", (column, group)))
        codes.append(zero - stored.zero_less & 15)
    return made.step("zero", ("u8", "i32"), _word(codes, "i32"))


def _of_table(fields: Fields, name: str) -> Made:
    return Made(fields, _sizes(fields, f"stored_{name}"), (fields.n, groups(fields)))


def _copied(fields: Fields, name: str) -> Step:
    """The step that copies scales, or zero points of the same type."""
    form, made = STORED[fields.source].scales, _of_table(fields, name)
    numbers: tuple[Number, ...] = ()
    first, second = made.axis(0), made.axis(1)
    if form == "groups_first":
        place: tuple[Node, ...] = (second, first)
    elif form == "n_first":
        place = (first, second)
    else:
        row = scalar("row", "i64")
        numbers = (Number(name="row", value=max(1, groups(fields)), type="i64"),)
        packs = fields.op == "pack_weights"
        place = (first * row + second, constant(0, "i64")) if packs else (first // row, first % row)
    dtype = fields.weight_format.scale_dtype
    return made.step(name, (dtype, dtype), made.at("given", dtype, place), numbers)


def _copied_groups(fields: Fields) -> Step:
    """The step that copies the group of each element; a batch shares one table."""
    made = Made(fields, (fields.k,), (fields.k,), shared=True)
    return made.step("groups", ("i32", "i32"), made.at("given", "i32", (coord(0),)))
