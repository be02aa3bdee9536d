"""Checks of expressions of gate and up; each refusal contains the path of the node."""

from __future__ import annotations

from typing import Any

from opfacade.programs import text
from opfacade.programs.expression import Node
from opfacade.programs.fault import Fault
from opfacade.programs.fields import paths, used_names

_NAMES = ("limit", "alpha")


def check_expression(descriptor: Any) -> None:
    """Raises Fault for the first node, name or number that is invalid or missing."""
    values: dict[str, Node] = descriptor.values()
    text.check_limits(values)
    known = set(descriptor.parts)
    numbers = {name for name in _NAMES if getattr(descriptor, name) is not None}
    for path, node in paths(values):
        _check_node(f".{path}", node, known, numbers)
    if descriptor.expression.type != "f32":
        raise Fault(".expression", "a value of type f32", descriptor.expression.type, "Convert with f32(x).")
    unused = sorted((known | numbers) - used_names(values))
    if unused:
        hint = "Without up, write gated=False." if unused == ["up"] else ""
        raise Fault(".expression", f"a program of {', '.join(sorted(known | numbers))}", f"none of {unused[0]}", hint)


def _check_node(path: str, node: Node, inputs: set[str], numbers: set[str]) -> None:
    if node.kind not in ("input", "scalar", "constant", "apply"):
        raise Fault(path, "the inputs at the position of the element", node.kind)
    known = inputs if node.kind == "input" else numbers
    if node.kind in ("input", "scalar") and (node.data not in known or node.type != "f32"):
        raise Fault(f"{path}.name", f"an f32 among {', '.join(sorted(known)) or 'no numbers'}", f"{node.type} {node.data}")
