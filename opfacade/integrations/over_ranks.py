"""OverRanks: calls of an engine over several ranks, with plans that are reserved once for several numbers of rows.

A batch uses the plan with the smallest reserved number of rows that is large enough; the additional rows are padding. If no
plan fits, the engine's own function runs; this decision depends only on shapes and dtypes, which are equal on all ranks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from opfacade.core.dtypes import torch_dtype
from opfacade.distributed import Group
from opfacade.plan import Plan
from opfacade.plans.collective import (
    AllReduceNormArgs,
    AllReduceNormDescriptor,
    MergeAcrossArgs,
    MergeAcrossDescriptor,
)

if TYPE_CHECKING:
    from torch import Tensor

_LN_2 = math.log(2)


class EngineGroup(Protocol):
    """The ranks of a serving engine."""

    @property
    def world_size(self) -> int: ...
    @property
    def rank_in_group(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Heads:
    """A decode over a sharded cache: the query heads of all ranks, elements of a head, and the element type of o."""

    num_heads: int
    head_dim: int
    dtype: Any = "bf16"


@dataclass(frozen=True, slots=True)
class Rows:
    """A sum of rows over ranks, followed by a norm, as in a layer of the engine. weight_dtype None: dtype."""

    hidden: int
    eps: float = 1e-6
    dtype: Any = "bf16"
    weight_dtype: Any = None


class OverRanks:
    """Plans of one group. rows: the numbers of rows to reserve, for example the batch sizes that the engine captures.
    Collective: every rank creates it with equal arguments. Raises GroupError as `Group.reserve` does."""

    def __init__(self, group: Group, rows: Sequence[int], heads: Heads | None = None, norm: Rows | None = None) -> None:
        self.group, self.rows = group, sorted(set(rows))
        self._heads, self._norm, target = heads, norm, group.target
        self._merge = None if heads is None else self._merge_of(heads, 1)
        self._normed = None if norm is None else self._norm_of(norm, 1)
        self._merges: dict[int, Plan[Any]] = {}
        self._norms: dict[int, Plan[Any]] = {}
        for count in self.rows:
            if heads is not None:
                self._merges[count] = Plan.select(self._merge_of(heads, count), target=target)
            if norm is not None:
                self._norms[count] = Plan.select(self._norm_of(norm, count), target=target)
        group.reserve([*self._merges.values(), *self._norms.values()])

    def merged(self, o: Tensor, lse: Tensor, base_2: bool = False) -> tuple[Tensor, Tensor] | None:
        """o [rows, num_heads, head_dim] and lse [rows, num_heads] of this rank's shard, merged with the shards of all ranks.
        Returns the heads that this rank keeps, and their lse in the same base; None if no plan fits."""
        count, heads = self._count(self._merges, o), self._heads
        if heads is None or count is None or not self.fits(o):
            return None
        kept = (count, heads.num_heads // self.group.world)
        told = lse.float() * _LN_2 if base_2 else lse.float()
        args = MergeAcrossArgs(
            o_part=_padded(o, count, 0.0)[None], lse_part=_padded(told, count, -math.inf)[None],
            o=o.new_empty(*kept, heads.head_dim), lse=told.new_empty(kept), group=self.group,
        )  # fmt: skip
        self._merges[count].run(args)
        lse = args.lse[: len(o)]
        return args.o[: len(o)], lse / _LN_2 if base_2 else lse

    def fits(self, o: Tensor) -> bool:
        """Whether a reserved plan can merge results with this shape and dtype."""
        d = self._merge
        if d is None or self._count(self._merges, o) is None:
            return False
        return o.shape[1:] == (d.num_heads, d.head_dim) and o.dtype == torch_dtype(d.dtype)

    def normed(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
        """(norm of the sum, sum with residual) for x [rows, hidden] of all ranks; residual is not overwritten. None if no plan
        fits."""
        count, norm, d = self._count(self._norms, x), self._norm, self._normed
        if norm is None or d is None or count is None or x.shape[1:] != (norm.hidden,) or eps != norm.eps:
            return None
        kinds = (torch_dtype(d.dtype), torch_dtype(d.weight_dtype or d.dtype))
        if (x.dtype, weight.dtype) != kinds or residual.dtype != x.dtype:
            return None
        total = _padded(residual, count, 0.0)
        total = total.clone() if total is residual else total
        given = _padded(x, count, 0.0)
        args = AllReduceNormArgs(x=given, weight=weight, residual=total, out=x.new_empty(given.shape), group=self.group)
        self._norms[count].run(args)
        return args.out[: len(x)], total[: len(x)]

    def serves(self, engine_group: EngineGroup) -> bool:
        """Whether a group of the engine has the same ranks in the same order."""
        return (engine_group.world_size, engine_group.rank_in_group) == (self.group.world, self.group.rank)

    def _merge_of(self, heads: Heads, count: int) -> MergeAcrossDescriptor:
        sizes = {"num_heads": heads.num_heads, "head_dim": heads.head_dim, "dtype": heads.dtype}
        return MergeAcrossDescriptor(world=self.group.world, total_num_rows=count, scatter="heads", **sizes)

    def _norm_of(self, norm: Rows, count: int) -> AllReduceNormDescriptor:
        fields = {"hidden": norm.hidden, "eps": norm.eps, "dtype": norm.dtype, "weight_dtype": norm.weight_dtype}
        return AllReduceNormDescriptor(world=self.group.world, total_num_rows=count, residual="replicated", **fields)

    def _count(self, plans: dict[int, Plan[Any]], rows: Tensor) -> int | None:
        """The smallest reserved number of rows that is at least `rows`."""
        return next((count for count in sorted(plans) if 0 < len(rows) <= count), None)


def _padded(rows: Tensor, count: int, value: float) -> Tensor:
    if len(rows) == count:
        return rows
    made = rows.new_full((count, *rows.shape[1:]), value)
    made[: len(rows)] = rows
    return made


def replace_everywhere(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Replaces `old` by `new` in every loaded module that imported it by name, as engines do."""
    name = old.__name__
    for module in tuple(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)
