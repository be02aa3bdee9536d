"""FlashInfer's top-k of rows."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch

from opfacade.compat.dtypes import name_of
from opfacade.compat.flashinfer._sampling.distributions import checked_rows
from opfacade.compat.refusals import require_integer, unmapped, wrong
from opfacade.compat.selecting import plan_for
from opfacade.plans.sampling import TopKArgs, TopKDescriptor


class TopKTieBreak(IntEnum):
    """Which of several equal values at the boundary are kept."""

    NONE = 0
    SMALL = 1
    LARGE = 2


_TIES = tuple(TopKTieBreak)


def top_k(
    input: torch.Tensor,
    k: int,
    sorted: bool = False,
    deterministic: bool = False,
    tie_break: int = TopKTieBreak.NONE,
    dsa_graph_safe: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest values of each row `[rows, n]` and their positions (int64), in descending order; equal values are ordered
    by position. tie_break 2 keeps the higher positions of equal values at the boundary; it needs a reversed copy of input. NaN
    and -inf are ignored: after the last candidate, the value is -inf and the position -1. k: at most 2^20, and at most n."""
    op = "top_k"
    x = checked_rows(op, "input", input)
    k = _checked_k(op, x, k, tie_break)
    values, positions = _highest(op, x, k) if tie_break == TopKTieBreak.LARGE else _found(op, x, k)
    return values, positions.long()


def top_k_of_windows(
    op: str, x: torch.Tensor, k: int, tie_break: int, window: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Positions `[rows, k]` i32 of the k largest values in columns starts[i] to ends[i] of row i; -1 after the last one. Equal
    values are ordered by position."""
    return _found(op, x, _checked_k(op, x, k, tie_break), window)[1]


def _checked_k(op: str, x: torch.Tensor, k: int, tie_break: int) -> int:
    if require_integer(op, "tie_break", tie_break) not in _TIES:
        raise wrong(op, "tie_break", "0, 1 or 2", tie_break)
    k = require_integer(op, "k", k)
    if not 1 <= k <= x.shape[1]:
        raise wrong(op, "k", f"1 to {x.shape[1]}", k)
    if k > TopKDescriptor.most:
        raise unmapped(op, "k", f"at most {TopKDescriptor.most}", k)
    return k


def _highest(op: str, x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keeps the highest positions of equal values at the cut; kept equal values are still in ascending order of position."""
    values, positions = _found(op, x.flip(1), k)
    positions, rising = torch.where(positions < 0, -1, x.shape[1] - 1 - positions).sort(1)
    values, falling = values.gather(1, rising).sort(dim=1, descending=True, stable=True)
    return values, positions.gather(1, falling)


def _found(
    op: str, x: torch.Tensor, k: int, window: tuple[torch.Tensor, torch.Tensor] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    plan = plan_for(_descriptor, (*x.shape, k, name_of(op, "input", x.dtype), window is not None), x.device)
    values, positions = x.new_empty(x.shape[0], k), x.new_empty(x.shape[0], k, dtype=torch.int32)
    starts, ends = window or (None, None)
    plan.run(TopKArgs(x=x, starts=starts, ends=ends, values=values, positions=positions))
    return values, positions


def _descriptor(facts: Any) -> TopKDescriptor:
    rows, vocab, k, dtype, windows = facts
    return TopKDescriptor(total_num_rows=rows, vocab=vocab, k=k, dtype=dtype, windows=windows)


topk = top_k
