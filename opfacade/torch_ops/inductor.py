"""Adds rules to inductor for ops that overwrite operands, when inductor first traces one of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch

from opfacade.torch_ops.kept_copies import protect

_PASSES = "torch._inductor.fx_passes.post_grad"


def prepare(name: str) -> None:
    """Adds the rules of `torch.ops.opfacade.<name>` if inductor has been imported."""
    if _PASSES in sys.modules:
        _add_pass()
        _add_lowering(name)


@cache
def _add_pass() -> None:
    from torch._inductor.fx_passes.post_grad import pass_patterns
    from torch._inductor.pattern_matcher import CallFunctionVarArgs, register_graph_pattern

    # The nodes by which a functional graph calls ops that overwrite operands, in both versions of torch's format.
    for call in (torch.ops.higher_order.auto_functionalized, torch.ops.higher_order.auto_functionalized_v2):
        pattern = CallFunctionVarArgs(call)
        register_graph_pattern(pattern, extra_check=_is_ours, pass_dict=pass_patterns[-1])(_on_match)


class Match(Protocol):
    """A match of an inductor pattern."""

    nodes: list[torch.fx.Node]


def _is_ours(match: Match) -> bool:
    return getattr(match.nodes[0].args[0], "namespace", "") == "opfacade"


def _on_match(match: Match, *_: object, **__: object) -> None:
    protect(match.nodes[0])


@cache
def _add_lowering(name: str) -> None:
    """Computes values that read an operand before the op that overwrites the operand is scheduled. Inductor computes these
    values only when it learns that the op overwrites the operand, which is too late, because the op has been scheduled."""
    from torch._inductor import lowering as known

    lowering: Any = known
    op = getattr(torch.ops.opfacade, name).default
    lowering.make_fallback(op, layout_constraint=lowering.maybe_layout_constraints(op), warn=False)
    lowering.lowerings[op] = _readers_first(op, lowering.lowerings[op])


def _readers_first(op: torch._ops.OpOverload, lower: Callable[..., Any]) -> Callable[..., Any]:
    written = [at for at, a in enumerate(op._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]

    def lowered(*args: Any, **kwargs: object) -> Any:
        from torch._inductor.virtualized import V

        for tensor in (args[at] for at in written if at < len(args) and args[at] is not None):
            tensor.realize()
            V.graph.mark_buffer_mutated(tensor.get_name())
        return lower(*args, **kwargs)

    lowered._is_fallback_handler = True  # type: ignore[attr-defined]  # inductor asks it of lowerings
    return lowered
