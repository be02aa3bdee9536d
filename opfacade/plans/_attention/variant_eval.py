"""Evaluates an expression in torch: bit for bit if it is exact, otherwise in any float dtype.

Positions, heads and parameters come as tensors that broadcast to [kv_heads, rows * group, keys]: rows of q with their query
heads innermost, as the reference and the oracle compute scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opfacade.plans._attention.expression import Apply, Constant, Input, Node, Parameter
from opfacade.plans._attention.variant import Variant
from opfacade.programs import evaluate as programs
from opfacade.programs import expression
from opfacade.programs.evaluate import Evaluation

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_OPERANDS = ("head_params", "row_params", "key_params")


@dataclass(frozen=True, slots=True)
class Stacks:
    """The parameters of one request: head [n, heads], row [n, rows], key [n, keys]; None if there are none."""

    head: Tensor | None = None
    row: Tensor | None = None
    key: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Which scores are computed: rows [r] of a request, by number, against all its keys."""

    rows: Tensor
    q_len: int
    kv_len: int
    heads: int
    kv_heads: int


Values = dict[str, Any]  # inputs by name, parameters by "per name"


def values_of(variant: Variant, place: Place, stacks: Stacks) -> Values:
    """All names that a variant's expressions may use, except the score and the query."""
    import torch

    group, device = place.heads // place.kv_heads, place.rows.device
    head = torch.arange(place.heads, device=device).view(place.kv_heads, 1, group)
    by_head = head.expand(-1, place.rows.numel(), -1).reshape(place.kv_heads, -1, 1)
    by_row = place.rows.repeat_interleave(group).view(1, -1, 1)
    found: Values = {
        "q_pos": (by_row + place.kv_len - place.q_len).int(),
        "kv_pos": torch.arange(place.kv_len, device=device, dtype=torch.int32).view(1, 1, -1),
        "q_len": torch.tensor(place.q_len, dtype=torch.int32, device=device),
        "kv_len": torch.tensor(place.kv_len, dtype=torch.int32, device=device),
        "head": by_head.int(),
        "kv_head": (by_head // group).int(),
    }
    for i, name in enumerate(variant.parameters("head")):
        found[f"head {name}"] = stacks.head[i][by_head]  # type: ignore[index]
    for i, name in enumerate(variant.parameters("row")):
        found[f"row {name}"] = stacks.row[i][by_row]  # type: ignore[index]
    for i, name in enumerate(variant.parameters("key")):
        found[f"key {name}"] = stacks.key[i].view(1, 1, -1)  # type: ignore[index]
    return found


def exact(node: Node, values: Values) -> Tensor:
    """An exact expression: int32, bool, or float32 in which every operation is rounded to the nearest."""
    found = Evaluation(leaves_of(values)).own(node_of(node))
    return found.int() if node.facts().type == "i32" else found


def inexact(node: Node, values: Values, dtype: torch.dtype) -> Tensor:
    """Any f32 expression in a float dtype; its i32 and bool parts stay exact."""
    return Evaluation(leaves_of(values), dtype, everywhere=True).in_real(node_of(node))


def leaves_of(values: Values) -> programs.Values:
    """The tensors that the nodes of expressions name."""
    return programs.Values({("input", name): value for name, value in values.items()}, values["q_len"].device)


def node_of(node: Node) -> expression.Node:
    """Converts an expression to a node of the program language; a parameter becomes the leaf "per name"."""
    if isinstance(node, Constant):
        return expression.constant(node.value, node.type)
    if isinstance(node, Apply):
        return expression.apply(node.op, *map(node_of, node.args))
    assert isinstance(node, (Input, Parameter))
    name = node.name if isinstance(node, Input) else f"{node.per} {node.name}"
    return expression.leaf(name, node.facts().type, node.facts().exact)
