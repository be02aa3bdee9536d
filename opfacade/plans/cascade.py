"""Combining partial attention results over disjoint sets of keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from opfacade.descriptor import Args, Descriptor
from opfacade.model import Count, Size
from opfacade.operands import Dim, TensorSpec
from opfacade.plan import Plan
from opfacade.sku import DType

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStatesArgs(Args):
    states_o: Tensor
    states_lse: Tensor
    o: Tensor
    lse: Tensor


class MergeStatesDescriptor(Descriptor[MergeStatesArgs]):
    """o = sum_s exp(lse_s - lse) o_s with lse = log sum_s exp(lse_s): attention over the union of the states' keys.

    A state with lse = -inf is empty and its o is not looked at; merging only empty states gives o = 0, lse = -inf. An
    attention sink is counted by the lse of one of the states, and by no other.
    """

    op: Literal["merge_states"] = "merge_states"
    category: ClassVar[str] = "cascade"
    sizes: ClassVar[frozenset[str]] = frozenset({"num_states", "total_num_rows"})
    args_type: ClassVar[type[Args]] = MergeStatesArgs
    num_states: Size
    total_num_rows: Count
    num_heads: Size
    head_dim: Size
    dtype: DType

    def wrong_values(self, name: str, args: MergeStatesArgs) -> tuple[Tensor, str] | None:
        """The o of an empty state may hold anything, and any lse is one."""
        found = super().wrong_values(name, args)
        if found is None or name == "states_lse":
            return None
        return found[0] & (args.states_lse != -math.inf)[..., None], found[1]

    def operands(self) -> dict[str, TensorSpec]:
        states, rows = Dim("num_states", self.num_states), Dim("total_num_rows", self.total_num_rows)
        heads, dim = Dim("num_heads", self.num_heads), Dim("head_dim", self.head_dim)
        return {
            "states_o": TensorSpec((states, rows, heads, dim), self.dtype, "in", "contiguous"),
            "states_lse": TensorSpec((states, rows, heads), "f32", "in", "contiguous", alignment=4),
            "o": TensorSpec((rows, heads, dim), self.dtype, "out", "contiguous"),
            "lse": TensorSpec((rows, heads), "f32", "out", "contiguous", alignment=4),
        }


class MergeStatesPlan(Plan[MergeStatesArgs]): ...


EXAMPLES = (
    MergeStatesDescriptor(num_states=2, total_num_rows=100, num_heads=32, head_dim=128, dtype="bf16"),
    MergeStatesDescriptor(num_states=5, total_num_rows=63, num_heads=3, head_dim=65, dtype="f16"),
)
