"""Evaluates an expression in torch: to the bit if it is exact, otherwise in any float dtype.

Positions, heads and parameters come as tensors that broadcast to [kv_heads, rows * group, keys]: rows of q with their query
heads innermost, as the reference and the oracle compute scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opfacade.plans._attention.expression import Apply, Constant, Input, Node, Parameter
from opfacade.plans._attention.variant import Variant

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_OPERANDS = ("head_params", "row_params", "key_params")


@dataclass(frozen=True, slots=True)
class Stacks:
    """The parameters of one request: head [n, heads], row [n, rows], key [n, keys]; None where there are none."""

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
    """All that expressions of a variant may name but the score and the query."""
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
    return _walk(node, values, None)


def inexact(node: Node, values: Values, dtype: torch.dtype) -> Tensor:
    """Any f32 expression in a float dtype; what is i32 or bool in it stays exact."""
    return _walk(node, values, dtype)


def _walk(node: Node, values: Values, dtype: torch.dtype | None) -> Tensor:
    import torch

    real = node.facts().type == "f32"
    if not real:
        dtype = None
    if isinstance(node, Constant):
        kinds = {"f32": dtype or torch.float32, "i32": torch.int32, "bool": torch.bool}
        return torch.tensor(node.value, dtype=kinds[node.type], device=values["q_len"].device)
    if isinstance(node, (Input, Parameter)):
        name = node.name if isinstance(node, Input) else f"{node.per} {node.name}"
        value: Tensor = values[name]
        return value if dtype is None else value.to(dtype)
    assert isinstance(node, Apply)
    if node.op == "f32":
        return _walk(node.args[0], values, None).to(dtype or torch.float32)
    args = [_walk(arg, values, dtype) for arg in node.args]
    integers = args[-1].dtype == torch.int32 and node.op not in ("select", "lt", "le", "gt", "ge", "eq", "ne")
    return _integer(node.op, args) if integers else OPERATIONS[node.op](*args)


def _integer(op: str, args: list[Tensor]) -> Tensor:
    """Modulo 2^32; a quotient is rounded down and its remainder has the sign of the divisor; by 0 both are 0."""
    import torch

    wide = [arg.long() for arg in args]
    if op in ("floordiv", "mod"):
        a, b = wide
        none = b == 0
        quotient = torch.div(a, b.masked_fill(none, 1), rounding_mode="floor")
        result = (quotient if op == "floordiv" else a - quotient * b).masked_fill(none, 0)
    else:
        result = OPERATIONS[op](*wide)
    return ((result + 2**31) % 2**32 - 2**31).int()


def _torch(name: str) -> Callable[..., Tensor]:
    def call(*args: Tensor) -> Tensor:
        import torch

        found: Tensor = getattr(torch, name)(*args)
        return found

    return call


def _least(a: Tensor, b: Tensor) -> Tensor:
    import torch

    return torch.where(b < a, b, a)


def _most(a: Tensor, b: Tensor) -> Tensor:
    import torch

    return torch.where(a < b, b, a)


def _truncated(a: Tensor) -> Tensor:
    """Toward zero, at the end of the range where it is beyond, 0 for NaN."""
    return a.double().nan_to_num(0.0).clamp(-(2.0**31), 2.0**31 - 1).trunc().int()


def _root(a: Tensor) -> Tensor:
    """Rounded to the nearest, through f64: torch's own square root of f32 is not, on every CPU."""
    return a.double().sqrt().to(a.dtype)


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "abs": abs,
    "min": _least,
    "max": _most,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "not": lambda a: ~a,
    "select": _torch("where"),
    "i32": _truncated,
    "sqrt": _root,
    **{name: _torch(name) for name in ("floor", "exp2", "log2", "tanh")},
}
