"""An expression in infix form, with no more brackets than Python needs."""

from __future__ import annotations

from typing import Any

# Operators with their precedence: an operand with a lower precedence needs brackets.
_BINARY = {
    "lt": ("<", 1), "le": ("<=", 1), "gt": (">", 1), "ge": (">=", 1), "or": ("|", 2), "and": ("&", 3), "add": ("+", 4),
    "sub": ("-", 4), "mul": ("*", 5), "div": ("/", 5), "floordiv": ("//", 5), "mod": ("%", 5),
}  # fmt: skip
_UNARY = {"neg": "-", "not": "~"}
_CALLS = {"eq": "equal", "ne": "not_equal", "min": "min_", "max": "max_"}
_UNARY_RANK, _CALL_RANK = 6, 7


def infix(node: object) -> str:
    """The text of a node; the text of a parameter is its name."""
    return _ranked(node)[0]


def _ranked(node: Any) -> tuple[str, int]:
    if node.kind == "constant":
        text = repr(node.value)
        return text, _UNARY_RANK if text.startswith("-") else _CALL_RANK
    if node.kind in ("input", "parameter"):
        return node.name, _CALL_RANK
    if node.op in _UNARY and len(node.args) == 1:
        return f"{_UNARY[node.op]}{_at_least(node.args[0], _UNARY_RANK)}", _UNARY_RANK
    if node.op in _BINARY and len(node.args) == 2:
        mark, rank = _BINARY[node.op]
        left = rank + 1 if rank == 1 else rank  # comparisons do not chain
        return f"{_at_least(node.args[0], left)} {mark} {_at_least(node.args[1], rank + 1)}", rank
    return f"{_CALLS.get(node.op, node.op)}({', '.join(map(infix, node.args))})", _CALL_RANK


def _at_least(node: object, rank: int) -> str:
    text, own = _ranked(node)
    return text if own >= rank else f"({text})"
