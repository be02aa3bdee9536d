"""Rotary position embedding of q and k, by a table of cosines and sines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.in_place import in_place
from opfacade.core.model import INT32_MAX, Count, Size, contradiction
from opfacade.core.operands import Dim, TensorSpec, index_spec, num_valid_spec
from opfacade.plan import Plan
from opfacade.plans._rotary_program import rotated_element
from opfacade.plans._rotary_table import Kind, rotary_table
from opfacade.programs.expression import Node

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Kind", "RotaryArgs", "RotaryDescriptor", "RotaryPlan", "rotary_table"]

Narrow = Literal["f16", "bf16", "f32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryArgs(Args):
    docs: ClassVar[Mapping[str, str]] = MappingProxyType({
        "q": "[total_num_rows, num_qo_heads, head_dim]; overwritten with in_place",
        "k": "[total_num_rows, num_kv_heads, head_dim]; overwritten with in_place; absent without kv heads",
        "q_out": "written: like q; absent with in_place",
        "k_out": "written: like k; absent with in_place, and without kv heads",
        "positions": "[total_num_rows], or [sections, total_num_rows]: rows of cos_sin_cache; a negative one skips its row",
        "cos_sin_cache": "[max_positions, rotary_dim]: rotary_dim / 2 cosines, then as many sines, of each position",
        "num_valid": "int32 [1]: rows at and past it are neither read nor written; with `num_valid`",
    })  # fmt: skip
    q: Tensor
    k: Tensor | None = None
    q_out: Tensor | None = None
    k_out: Tensor | None = None
    positions: Tensor
    cos_sin_cache: Tensor
    num_valid: Tensor | None = None


class RotaryDescriptor(Descriptor[RotaryArgs]):
    """Pairs of elements of each head of q and k are rotated by the angles of their row's position.

    Rotated are the elements rotary_offset to rotary_offset + rotary_dim of a head; pairs are (i, i + rotary_dim / 2), or
    neighbours (2i, 2i + 1) with interleaved. (x, y) becomes (x cos - y sin, y cos + x sin), and with inverse it is turned back.
    The arithmetic is f32, each step rounded, and the result is rounded once: the same bits on every device.
    cos_sin_cache [max_positions, rotary_dim] holds rotary_dim / 2 cosines, then as many sines, for each position;
    `rotary_table` makes one. A position past the table takes its last row, and is reported at level indices. A row with a
    negative position (padding) is neither rotated nor written.
    sections: sizes of groups of pairs, rotary_dim / 2 together, each with positions of its own: positions is [groups, rows].
    section_order: "blocks": the first sections[0] pairs are group 0, and so on; "interleaved": pair i is of group
    g = i % groups if i < groups * sections[g], else of group 0.
    in_place: q and k are overwritten; else q_out and k_out are written whole. Rows and heads may have any strides.
    Raises DescriptorError.
    """

    op: Literal["rotary"] = Field(default="rotary", description="The operator.")
    category: ClassVar[str] = "rotary"
    error_models: ClassVar[tuple[str, ...]] = ("exact",)
    args_type: ClassVar[type[Args]] = RotaryArgs
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows", "num_qo_heads"})
    total_num_rows: Count = Field(description="Rows of q and k.")
    num_qo_heads: Size = Field(description="Heads of q.")
    num_kv_heads: Count = Field(description="Heads of k; 0: there is no k.")
    head_dim: Size = Field(description="Elements of a head.")
    rotary_dim: Size = Field(description="Elements of a head that are rotated, even.")
    rotary_offset: Count = Field(default=0, description="Elements of a head before those.")
    interleaved: bool = Field(default=False, description="Whether pairs are neighbours.")
    inverse: bool = Field(default=False, description="Whether heads are turned back.")
    dtype: Narrow = Field(description="Element type of q and k.")
    table_dtype: Narrow = Field(default="f32", description="Element type of cos_sin_cache.")
    positions: Literal["i32", "i64"] = Field(default="i64", description="Element type of positions.")
    sections: Annotated[tuple[Size, ...], Field(min_length=2, max_length=4)] | None = Field(
        default=None, description="Pairs of each group that has positions of its own, 2 to 4 groups; null: one for all."
    )
    section_order: Literal["blocks", "interleaved"] = Field(
        default="blocks", description="How the pairs of the groups follow each other."
    )
    in_place: bool = Field(default=True, description="Whether q and k are overwritten.")
    num_valid: bool = Field(default=False, description="Whether the operand num_valid limits the rows.")

    @model_validator(mode="after")
    def _fits(self) -> RotaryDescriptor:
        room = self.head_dim - self.rotary_offset
        if self.rotary_offset >= self.head_dim:
            raise contradiction("rotary_offset", f"below head_dim={self.head_dim}", self.rotary_offset)
        if self.rotary_dim % 2 or self.rotary_dim > room:
            raise contradiction("rotary_dim", f"an even number, at most head_dim - rotary_offset = {room}", self.rotary_dim)
        if self.sections is not None and sum(self.sections) != self.rotary_dim // 2:
            raise contradiction("sections", f"sizes of {self.rotary_dim // 2} pairs together", sum(self.sections))
        if self.sections is None and self.section_order != "blocks":
            raise contradiction("section_order", "'blocks' without sections", self.section_order)
        return self

    @property
    def groups(self) -> int:
        """Positions of a row."""
        return len(self.sections or (0,))

    def section_of(self, pair: int) -> int:
        """The group of a pair of angles."""
        sections = self.sections or (self.rotary_dim // 2,)
        if self.section_order == "interleaved":
            group = pair % len(sections)
            return group if pair < len(sections) * sections[group] else 0
        return next(group for group in range(len(sections)) if pair < sum(sections[: group + 1]))

    def program(self) -> dict[str, Node]:
        """{"out": an element of a head}, a program over [rows, heads, head_dim] of the inputs x, positions and table, each read
        at computed places."""
        return {"out": rotated_element(self)}

    def operands(self) -> dict[str, TensorSpec]:
        rows, dim, valid = Dim("total_num_rows", self.total_num_rows), Dim("head_dim", self.head_dim), ""
        valid = "num_valid" if self.num_valid else ""
        heads = {"q": Dim("num_qo_heads", self.num_qo_heads)}
        heads |= {"k": Dim("num_kv_heads", self.num_kv_heads)} if self.num_kv_heads else {}
        size = ITEMSIZE[self.dtype]
        given = {name: TensorSpec((rows, of, dim), self.dtype, alignment=size, valid_rows=valid) for name, of in heads.items()}
        out = {f"{name}_out": spec._replace(role="out", replaces=name if self.in_place else "") for name, spec in given.items()}
        shape = (rows,) if self.sections is None else (Dim("sections", self.groups), rows)
        at = index_spec(*shape, values=(-1, INT32_MAX), dtype=self.positions, valid_rows="" if self.sections else valid)
        table = TensorSpec(
            (Dim("max_positions"), Dim("rotary_dim", self.rotary_dim)), self.table_dtype, alignment=ITEMSIZE[self.table_dtype]
        )
        found = given | out | {"positions": at._replace(below="cos_sin_cache"), "cos_sin_cache": table}
        found |= {"num_valid": num_valid_spec(self.total_num_rows)} if self.num_valid else {}
        return in_place(found) if self.in_place else found

    def written(self, args: Any) -> dict[str, Tensor]:
        """The results of a call, as q and k."""
        names = ("q", "k") if self.num_kv_heads else ("q",)
        return {name: getattr(args, name if self.in_place else f"{name}_out") for name in names}


class RotaryPlan(Plan[RotaryArgs]):
    """Rotary position embedding of q and k."""


EXAMPLES = (
    RotaryDescriptor(total_num_rows=64, num_qo_heads=8, num_kv_heads=2, head_dim=128, rotary_dim=128, dtype="bf16"),
    RotaryDescriptor(
        total_num_rows=7, num_qo_heads=3, num_kv_heads=1, head_dim=65, rotary_dim=32, rotary_offset=5, dtype="f32",
        interleaved=True, positions="i32", in_place=False,
    ),
    RotaryDescriptor(
        total_num_rows=13, num_qo_heads=5, num_kv_heads=0, head_dim=192, rotary_dim=64, rotary_offset=128, dtype="bf16",
        table_dtype="bf16", interleaved=True, inverse=True, num_valid=True,
    ),
    RotaryDescriptor(
        total_num_rows=9, num_qo_heads=4, num_kv_heads=2, head_dim=128, rotary_dim=128, dtype="f16", sections=(16, 24, 24),
        in_place=False,
    ),
)  # fmt: skip
