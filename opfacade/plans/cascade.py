"""Combining partial attention results over disjoint sets of keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.dtypes import FloatDType
from opfacade.core.model import Count, Size, contradiction
from opfacade.core.operands import Dim, Role, TensorSpec, index_spec
from opfacade.plan import Plan

__all__ = ["MergeStatesArgs", "MergeStatesDescriptor", "MergeStatesPlan"]

if TYPE_CHECKING:
    from torch import Tensor


States = Literal["stacked", "list", "ragged"]
MAX_LISTED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStatesArgs(Args):
    """The tensors of one merge.

    states_o, states_lse: one tensor each with the states stacked, or with `states="list"` a list or tuple of up to 8. The
    tensors of a list become the operands state_o_0, state_lse_0 and so on, by which errors and dumps name them.
    states_indptr: with `states="ragged"`, where the states of each row begin in states_o and states_lse.
    o, lse: None with `in_place`.
    """

    docs: ClassVar[Mapping[str, str]] = MappingProxyType({
        "states_o": "outputs of the states: [num_states, total_num_rows, num_heads, head_dim], a list of [rows, heads, dim], "
        "or ragged: [num_states, num_heads, head_dim]",
        "states_lse": "f32, their log-sum-exps, in the shape of states_o without head_dim",
        "states_indptr": "i32 [total_num_rows + 1]: row r merges states states_indptr[r] to states_indptr[r + 1]; with "
        "states='ragged'",
        "o": "written: [total_num_rows, num_heads, head_dim] in dtype",
        "lse": "written: f32 [total_num_rows, num_heads]",
        **{f"state_o_{i}": "set by a list in states_o" for i in range(MAX_LISTED)},
        **{f"state_lse_{i}": "set by a list in states_lse" for i in range(MAX_LISTED)},
    })  # fmt: skip

    states_o: Tensor | Sequence[Tensor] | None = None
    states_lse: Tensor | Sequence[Tensor] | None = None
    o: Tensor | None = None
    lse: Tensor | None = None
    state_o_0: Tensor | None = None
    state_o_1: Tensor | None = None
    state_o_2: Tensor | None = None
    state_o_3: Tensor | None = None
    state_o_4: Tensor | None = None
    state_o_5: Tensor | None = None
    state_o_6: Tensor | None = None
    state_o_7: Tensor | None = None
    state_lse_0: Tensor | None = None
    state_lse_1: Tensor | None = None
    state_lse_2: Tensor | None = None
    state_lse_3: Tensor | None = None
    state_lse_4: Tensor | None = None
    state_lse_5: Tensor | None = None
    state_lse_6: Tensor | None = None
    state_lse_7: Tensor | None = None
    states_indptr: Tensor | None = None

    def __post_init__(self) -> None:
        """A list is spread over its operands; one that is too long stays, and is refused with the call."""
        for kind in ("o", "lse"):
            given = getattr(self, f"states_{kind}")
            if isinstance(given, (list, tuple)) and len(given) <= MAX_LISTED:
                object.__setattr__(self, f"states_{kind}", None)
                for i, tensor in enumerate(given):
                    object.__setattr__(self, f"state_{kind}_{i}", tensor)


class MergeStatesDescriptor(Descriptor[MergeStatesArgs]):
    """o = sum_s exp(lse_s - lse) o_s with lse = log sum_s exp(lse_s): attention over the union of the states' keys.

    A state with lse = -inf is empty and its o is not looked at; merging only empty states gives o = 0, lse = -inf. An
    attention sink is counted by the lse of one of the states, and by no other.
    states: "stacked" takes states_o [num_states, total_num_rows, num_heads, head_dim] and states_lse [num_states,
    total_num_rows, num_heads] f32; "list" takes lists of up to 8 tensors [total_num_rows, num_heads, head_dim] and
    [total_num_rows, num_heads], each contiguous; "ragged" takes states_o [num_states, num_heads, head_dim], states_lse
    [num_states, num_heads] and states_indptr [total_num_rows + 1]: each row has any number of states. An entry below 0 is 0 and
    one above num_states is num_states.
    in_place: o and lse are written into state 0, in its dtype, and are no operands; the other states stay as they are.
    """

    op: Literal["merge_states"] = Field(default="merge_states", description="The operator.")
    category: ClassVar[str] = "cascade"
    error_models: ClassVar[tuple[str, ...]] = ("exact", "merge-f32")
    later: ClassVar[frozenset[str]] = frozenset({"states", "in_place"})
    sizes: ClassVar[frozenset[str]] = frozenset({"num_states", "total_num_rows"})
    args_type: ClassVar[type[Args]] = MergeStatesArgs
    lists: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType(
        {f"states_{kind}": tuple(f"state_{kind}_{i}" for i in range(MAX_LISTED)) for kind in ("o", "lse")}
    )
    num_states: Size = Field(description="Partial results to merge: of each row, at most 8 of a list; ragged, of all rows.")
    total_num_rows: Count = Field(description="Rows of each state.")
    num_heads: Size = Field(description="Heads of each row.")
    head_dim: Size = Field(description="Elements of one head.")
    dtype: FloatDType = Field(description="Element type of o.")
    states: States = Field(
        default="stacked",
        description='"stacked": one tensor holds all; "list": lists of up to 8 tensors; "ragged": as many a row as it has.',
    )
    in_place: bool = Field(default=False, description="Write o and lse into state 0 and leave the other states as they are.")

    @model_validator(mode="after")
    def _short_list(self) -> MergeStatesDescriptor:
        if self.states == "list" and self.num_states > MAX_LISTED:
            hint = "Stack them, or merge in two steps."
            raise contradiction("num_states", f"at most {MAX_LISTED} states in a list", self.num_states, hint)
        if self.states == "ragged" and self.in_place:
            raise contradiction("in_place", "False beside states='ragged'", True, "Rows may have no state to write into.")
        return self

    @property
    def state_names(self) -> tuple[tuple[str, str], ...]:
        """The operands of o and lse: a pair for each state of a list, or one for all."""
        if self.states != "list":
            return (("states_o", "states_lse"),)
        count = min(self.num_states, MAX_LISTED)  # operands are looked at before a list that is too long is refused
        return tuple((f"state_o_{i}", f"state_lse_{i}") for i in range(count))

    def states_of(self, args: Any) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """o and lse of the states in their order, whichever form they have; ragged ones with empty states behind them."""
        if self.states == "ragged":
            return self._padded(args)
        o, lse = zip(*((getattr(args, o), getattr(args, lse)) for o, lse in self.state_names), strict=True)
        return (o, lse) if self.states == "list" else (o[0], lse[0])

    def _padded(self, args: Any) -> tuple[Any, Any]:
        """Ragged states as stacked ones: as many as the longest row has, and at least one."""
        import torch

        indptr = args.states_indptr.long().clamp(0, self.num_states)
        first, counts = indptr[:-1], indptr.diff().clamp(min=0)
        place = torch.arange(max([1, *counts.tolist()]), device=indptr.device)[:, None]
        state = (first + place).clamp(max=self.num_states - 1)
        lse = torch.where((place < counts)[..., None], args.states_lse[state], -math.inf)
        return args.states_o[state], lse

    def merged(self, args: Any) -> tuple[Tensor, Tensor]:
        """Where o and lse are written: views of state 0 with `in_place`."""
        if self.in_place:
            o, lse = self.states_of(args)
            return o[0], lse[0]
        return args.o, args.lse

    def wrong_values(self, name: str, args: MergeStatesArgs) -> tuple[Tensor, str] | None:
        """The o of an empty state may hold anything, and any lse is one. An indptr does not fall."""
        if name == "states_indptr":
            indptr: Tensor = getattr(args, name)
            return indptr.diff(prepend=indptr[:1]) < 0, "an entry not below the one before"
        found = super().wrong_values(name, args)
        if found is None or name.startswith(("states_lse", "state_lse")):
            return None
        return found[0] & (getattr(args, name.replace("_o", "_lse")) != -math.inf)[..., None], found[1]

    def operands(self) -> dict[str, TensorSpec]:
        if self.states == "ragged":
            return self._ragged_operands()
        many = (Dim("num_states", self.num_states),) if self.states == "stacked" else ()
        rows = Dim("total_num_rows", self.total_num_rows)
        o, lse = self._row_of(rows)
        roles: list[Role] = ["inout" if self.in_place and i == 0 else "in" for i in range(len(self.state_names))]
        pairs = list(zip(self.state_names, roles, strict=True))
        found = {name: o._replace(shape=(*many, *o.shape), role=role) for (name, _), role in pairs}
        found |= {name: lse._replace(shape=(*many, *lse.shape), role=role) for (_, name), role in pairs}
        return found if self.in_place else found | {"o": o._replace(role="out"), "lse": lse._replace(role="out")}

    def _row_of(self, rows: Dim) -> tuple[TensorSpec, TensorSpec]:
        """o and lse of so many rows, which are read."""
        heads = Dim("num_heads", self.num_heads)
        o = TensorSpec((rows, heads, Dim("head_dim", self.head_dim)), self.dtype, "in", "contiguous")
        return o, TensorSpec((rows, heads), "f32", "in", "contiguous", alignment=4)

    def _ragged_operands(self) -> dict[str, TensorSpec]:
        states_o, states_lse = self._row_of(Dim("num_states", self.num_states))
        indptr = index_spec(Dim("total_num_rows+1", self.total_num_rows + 1), values=(0, self.num_states + 1))
        o, lse = self._row_of(Dim("total_num_rows", self.total_num_rows))
        states = {"states_o": states_o, "states_lse": states_lse, "states_indptr": indptr}
        return states | {"o": o._replace(role="out"), "lse": lse._replace(role="out")}


class MergeStatesPlan(Plan[MergeStatesArgs]):
    """Merging partial attention results over disjoint keys."""


EXAMPLES = (
    MergeStatesDescriptor(num_states=2, total_num_rows=100, num_heads=32, head_dim=128, dtype="bf16"),
    MergeStatesDescriptor(num_states=5, total_num_rows=63, num_heads=3, head_dim=65, dtype="f16"),
    MergeStatesDescriptor(num_states=8, total_num_rows=63, num_heads=8, head_dim=128, dtype="bf16", states="list"),
    MergeStatesDescriptor(num_states=2, total_num_rows=63, num_heads=8, head_dim=96, dtype="f16", in_place=True),
    MergeStatesDescriptor(num_states=150, total_num_rows=63, num_heads=3, head_dim=128, dtype="bf16", states="ragged"),
)
