"""Common parts of rotations: groups of pairs, their checks, and the operands for their angles."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

from pydantic import Field

from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.model import INT32_MAX, FromList, Model, Size, contradiction
from opfacade.core.operands import Dim, TensorSpec, counted_by, index_spec

Narrow = Literal["f16", "bf16", "f32"]


class Sectioned(Model):
    """Groups of pairs with separate positions."""

    rotary_dim: Size = Field(description="Even number of elements of a head that are rotated.")
    sections: Annotated[tuple[Size, ...], FromList, Field(min_length=2, max_length=4)] | None = Field(
        default=None, description="Number of pairs in each of 2 to 4 groups with separate positions; null: one group."
    )
    section_order: Literal["blocks", "interleaved"] = Field(default="blocks", description="Order of the pairs of the groups.")

    @property
    def groups(self) -> int:
        """Positions of a row."""
        return len(self.sections or (0,))

    def section_of(self, pair: int) -> int:
        """The group of a pair."""
        sections = self.sections or (self.rotary_dim // 2,)
        if self.section_order == "interleaved":
            group = pair % len(sections)
            return group if pair < len(sections) * sections[group] else 0
        return next(group for group in range(len(sections)) if pair < sum(sections[: group + 1]))


class RotationFields(Protocol):
    """Fields that decide a rotation and its angles."""

    @property
    def rotary_dim(self) -> int: ...
    @property
    def rotary_offset(self) -> int: ...
    @property
    def sections(self) -> tuple[int, ...] | None: ...
    @property
    def section_order(self) -> str: ...
    @property
    def groups(self) -> int: ...
    @property
    def positions(self) -> Literal["i32", "i64"]: ...
    @property
    def table_dtype(self) -> Narrow: ...


def check_rotation(given: RotationFields, head_dim: int) -> None:
    """Raises for a rotation that does not fit in a head."""
    room = head_dim - given.rotary_offset
    if given.rotary_offset >= head_dim:
        raise contradiction("rotary_offset", f"below head_dim={head_dim}", given.rotary_offset)
    if given.rotary_dim % 2 or given.rotary_dim > room:
        raise contradiction("rotary_dim", f"an even number, at most head_dim - rotary_offset = {room}", given.rotary_dim)
    if given.sections is not None and sum(given.sections) != given.rotary_dim // 2:
        raise contradiction("sections", f"sizes whose sum is {given.rotary_dim // 2}, the number of pairs", sum(given.sections))
    if given.sections is None and given.section_order != "blocks":
        raise contradiction("section_order", "'blocks' without sections", given.section_order)


def angle_operands(given: RotationFields, rows: Dim, valid: str) -> dict[str, TensorSpec]:
    """positions and cos_sin_cache. Positions of groups may have any stride, for example as the first columns of a buffer."""
    shape = (rows,) if given.sections is None else (Dim("sections", given.groups), rows)
    at = index_spec(*shape, values=(-1, INT32_MAX), dtype=given.positions)
    at = at if given.sections is None else at._replace(layout="rows")
    at = counted_by(at, shape.index(rows) if valid else None, "num_valid")
    size = ITEMSIZE[given.table_dtype]
    table = TensorSpec((Dim("max_positions"), Dim("rotary_dim", given.rotary_dim)), given.table_dtype, alignment=size)
    return {"positions": at._replace(contents=at.contents._replace(below="cos_sin_cache")), "cos_sin_cache": table}
