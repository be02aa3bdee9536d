"""FlashInfer's merges of attention states. FlashInfer's lse has base 2; opfacade's lse is natural."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from opfacade.compat.attending import Call
from opfacade.compat.dtypes import name_of
from opfacade.compat.flashinfer._attention.results import LN2, LOG2E
from opfacade.compat.refusals import require_tensor, wrong_layout, wrong_shape
from opfacade.compat.selecting import plan_for
from opfacade.plans.cascade import MergeStatesArgs, MergeStatesDescriptor

_LISTED = 8  # maximum number of states passed as a list; more are stacked


def merge_state(
    v_a: torch.Tensor, s_a: torch.Tensor, v_b: torch.Tensor, s_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges two states `[rows, heads, dim]` with lse `[rows, heads]` in base 2."""
    for name, lse in (("s_a", s_a), ("s_b", s_b)):
        require_tensor("merge_state", name, lse, "rows, heads")
    o, lse = merged("merge_state", (v_a, v_b), [_natural(s) for s in (s_a, s_b)])
    return o, lse.mul_(LOG2E)


def merge_state_in_place(
    v: torch.Tensor,
    s: torch.Tensor,
    v_other: torch.Tensor,
    s_other: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> None:
    """Like merge_state, but writes to v and s. mask `[rows]`: rows whose entry is false are not changed."""
    op = "merge_state_in_place"
    require_tensor(op, "s", s, "rows, heads")
    require_tensor(op, "s_other", s_other, "rows, heads")
    own, other = _natural(s), _natural(s_other)
    _require_own_memory(op, "s", s)
    if mask is not None:
        require_tensor(op, "v", v, "rows, heads, dim")
        _require_own_memory(op, "v", v)
        _merged_where(op, mask, (v, v_other), s, (own, other))
        return
    call = _call(op, (v, v_other), (own, other), in_place=True)
    call.plan.run(call.args)
    own.mul_(LOG2E)
    s.copy_(own)


def _require_own_memory(op: str, argument: str, out: torch.Tensor) -> None:
    """Refuses an expanded output, because torch would refuse it only after the other output was written."""
    if any(size > 1 and not stride for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise wrong_layout(op, argument, "separate memory for each element", f"strides {out.stride()}")


def _merged_where(
    op: str, mask: torch.Tensor, states: Sequence[torch.Tensor], s: torch.Tensor, lses: Sequence[torch.Tensor]
) -> None:
    """Rows whose mask is false are copied instead of merged with an empty state, because such a merge turns -0 into 0 and
    clears empty rows."""
    (rows,) = require_tensor(op, "mask", mask, "rows")
    if rows != s.shape[0] or mask.device != s.device:
        raise wrong_shape(op, "mask", f"[rows={s.shape[0]}] on {s.device}", f"{list(mask.shape)} on {mask.device}")
    o, lse = merged(op, states, lses)
    chosen = mask.bool()[:, None]
    states[0].copy_(torch.where(chosen[..., None], o, states[0]))
    s.copy_(torch.where(chosen, lse.mul_(LOG2E).to(s.dtype), s))


def merge_states(v: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges states `[rows, states, heads, dim]` with lse `[rows, states, heads]` in base 2."""
    rows, count, heads, _ = require_tensor("merge_states", "v", v, "rows, states, heads, dim")
    if require_tensor("merge_states", "s", s, "rows, states, heads") != (rows, count, heads):
        raise wrong_shape("merge_states", "s", f"[{rows}, {count}, {heads}]", list(s.shape))
    o, lse = merged("merge_states", v.unbind(1), _natural(s).unbind(1))
    return o, lse.mul_(LOG2E)


def merged(op: str, states: Sequence[torch.Tensor], lses: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges states with a natural lse."""
    call = _call(op, states, lses, in_place=False)
    call.plan.run(call.args)
    return call.args.o, call.args.lse


def _natural(s: torch.Tensor) -> torch.Tensor:
    return s.to(torch.float32) * LN2


def _call(op: str, states: Sequence[torch.Tensor], lses: Sequence[torch.Tensor], in_place: bool) -> Call:
    (rows, heads, dim), *_ = [require_tensor(op, "v", x, "rows, heads, dim") for x in states]
    listed = len(states) <= _LISTED
    facts = (len(states), rows, heads, dim, name_of(op, "v", states[0].dtype), "list" if listed else "stacked", in_place)
    outputs: dict[str, Any] = {}
    if not in_place:
        outputs["o"] = torch.empty(rows, heads, dim, dtype=states[0].dtype, device=states[0].device)
        outputs["lse"] = torch.empty(rows, heads, dtype=torch.float32, device=states[0].device)
    if listed:
        whole = [[x.contiguous() for x in part] for part in (states, lses)]
        if in_place:
            whole[0][0] = states[0]
        args = MergeStatesArgs(states_o=whole[0], states_lse=whole[1], **outputs)
    else:
        args = MergeStatesArgs(states_o=torch.stack(tuple(states)), states_lse=torch.stack(tuple(lses)), **outputs)
    return Call(plan_for(_descriptor, facts, states[0].device), args)


def _descriptor(facts: tuple[Any, ...]) -> MergeStatesDescriptor:
    count, rows, heads, dim, dtype, form, in_place = facts
    return MergeStatesDescriptor(
        num_states=count, total_num_rows=rows, num_heads=heads, head_dim=dim, dtype=dtype, states=form, in_place=in_place
    )
