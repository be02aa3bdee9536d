"""Combining partial attention results over disjoint sets of keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.dtypes import FloatDType
from opfacade.core.in_place import in_place
from opfacade.core.model import Count, Size, contradiction
from opfacade.core.operands import Contents, TensorSpec, dims_of, index_spec
from opfacade.core.tensor_lists import TensorList, elements, operand
from opfacade.plan import Plan

__all__ = ["MergeStatesArgs", "MergeStatesDescriptor", "MergeStatesPlan"]

if TYPE_CHECKING:
    from torch import Tensor

MAX_LISTED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStatesArgs(Args):
    """The tensors of one merge. A list in states_o or states_lse becomes operands state_o_0, state_lse_0 and so on; errors and
    dumps use these names."""

    states_o: Tensor | Sequence[Tensor] | None = operand(
        "outputs of the states: [num_states, total_num_rows, num_heads, head_dim], a list of up to 8 [rows, heads, dim], or "
        "ragged: [num_states, num_heads, head_dim]",
        TensorList(elements("state_o", MAX_LISTED)),
    )
    states_lse: Tensor | Sequence[Tensor] | None = operand(
        "f32, their log-sum-exps, in the shape of states_o without head_dim", TensorList(elements("state_lse", MAX_LISTED))
    )
    o: Tensor | None = operand("written: [total_num_rows, num_heads, head_dim] in dtype; None with `in_place`")
    lse: Tensor | None = operand("written: f32 [total_num_rows, num_heads]; None with `in_place`")
    states_indptr: Tensor | None = operand(
        "i32 [total_num_rows + 1]: row r merges states states_indptr[r] to states_indptr[r + 1]; with states='ragged'"
    )


class MergeStatesDescriptor(Descriptor[MergeStatesArgs]):
    """o = sum_s exp(lse_s - lse) o_s with lse = log sum_s exp(lse_s): attention over the union of the states' keys.

    A state with lse = -inf is empty, and its o is not read; merging only empty states gives o = 0, lse = -inf. At most one of
    the states may include an attention sink in its lse. All tensors are contiguous; MergeStatesArgs describes them. An entry of
    a ragged indptr below 0 counts as 0, and an entry above num_states as num_states.
    """

    op: Literal["merge_states"] = Field(default="merge_states", description="The operator.")
    category: ClassVar[str] = "cascade"
    error_models: ClassVar[tuple[str, ...]] = ("exact", "merge-f32")
    later: ClassVar[frozenset[str]] = frozenset({"states", "in_place"})
    sizes: ClassVar[frozenset[str]] = frozenset({"num_states", "total_num_rows"})
    num_states: Size = Field(description="Partial results per row, at most 8 in a list; ragged: of all rows together.")
    total_num_rows: Count = Field(description="Rows of each state.")
    num_heads: Size = Field(description="Heads of each row.")
    head_dim: Size = Field(description="Elements of one head.")
    dtype: FloatDType = Field(description="Element type of o.")
    states: Literal["stacked", "list", "ragged"] = Field(
        default="stacked",
        description='"stacked": all in one tensor; "list": up to 8 tensors; "ragged": each row has its own number of states.',
    )
    in_place: bool = Field(default=False, description="Write o and lse into state 0 and leave the other states as they are.")

    @model_validator(mode="after")
    def _coherent(self) -> MergeStatesDescriptor:
        if self.states == "list" and self.num_states > MAX_LISTED:
            hint = "Stack them, or merge in two steps."
            raise contradiction("num_states", f"at most {MAX_LISTED} states in a list", self.num_states, hint)
        if self.states == "ragged" and self.in_place:
            raise contradiction("in_place", "False with states='ragged'", True, "A row may have no state to overwrite.")
        return self

    @property
    def state_names(self) -> tuple[tuple[str, str], ...]:
        """The operands of o and lse: one pair for each state of a list, or one pair for all states."""
        listed = tuple(zip(*(some.names for some in MergeStatesArgs.parts.values()), strict=True))[: self.num_states]
        return listed if self.states == "list" else (("states_o", "states_lse"),)

    def states_of(self, args: Args) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """o and lse of the states in order, for every form of states; ragged rows are padded with empty states."""
        if self.states == "ragged":
            return self._padded(args)
        o, lse = zip(*((getattr(args, o), getattr(args, lse)) for o, lse in self.state_names), strict=True)
        return (o, lse) if self.states == "list" else (o[0], lse[0])

    def _padded(self, args: Any) -> tuple[Any, Any]:
        """Ragged states as stacked states, padded to the longest row and to at least one state."""
        import torch

        indptr = args.states_indptr.long().clamp(0, self.num_states)
        first, counts = indptr[:-1], indptr.diff().clamp(min=0)
        place = torch.arange(max([1, *counts.tolist()]), device=indptr.device)[:, None]
        state = (first + place).clamp(max=self.num_states - 1)
        return args.states_o[state], torch.where((place < counts)[..., None], args.states_lse[state], -math.inf)

    def merged(self, args: Any) -> tuple[Tensor, Tensor]:
        """The tensors to which o and lse are written; with `in_place`, views of state 0."""
        o, lse = self.states_of(args) if self.in_place else ([args.o], [args.lse])
        return o[0], lse[0]

    def operands(self) -> dict[str, TensorSpec]:
        states, rows, heads, dim = dims_of(self, "num_states", "total_num_rows", "num_heads", "head_dim")
        given = {"stacked": (states, rows), "list": (rows,), "ragged": (states,)}[self.states]
        o = TensorSpec((*given, heads, dim), self.dtype, layout="contiguous")
        lse = TensorSpec((*given, heads), "f32", layout="contiguous", alignment=4, contents=Contents(finite=False))
        found = {name: o._replace(contents=Contents(marked_by=mark)) for name, mark in self.state_names}
        found |= {mark: lse for _, mark in self.state_names}
        if self.states == "ragged":
            entries = dims_of(self, "total_num_rows+1")
            found["states_indptr"] = index_spec(*entries)._replace(contents=Contents((0, self.num_states + 1), rising=True))
        first = self.state_names[0] if self.in_place else ("", "")
        found["o"] = o._replace(shape=(rows, heads, dim), role="out", replaces=first[0])
        found["lse"] = lse._replace(shape=(rows, heads), role="out", replaces=first[1])
        return in_place(found)


class MergeStatesPlan(Plan[MergeStatesArgs]):
    """Merging partial attention results over disjoint keys."""


EXAMPLES = (
    MergeStatesDescriptor(num_states=2, total_num_rows=100, num_heads=32, head_dim=128, dtype="bf16"),
    MergeStatesDescriptor(num_states=5, total_num_rows=63, num_heads=3, head_dim=65, dtype="f16"),
    MergeStatesDescriptor(num_states=8, total_num_rows=63, num_heads=8, head_dim=128, dtype="bf16", states="list"),
    MergeStatesDescriptor(num_states=2, total_num_rows=63, num_heads=8, head_dim=96, dtype="f16", in_place=True),
    MergeStatesDescriptor(num_states=150, total_num_rows=63, num_heads=3, head_dim=128, dtype="bf16", states="ragged"),
)
