"""Expressions of a fold as statements: what is the same for all elements of a row or group is computed once, before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opfacade.backends.cuda import program_source as source
from opfacade.programs.expression import Node, ordered
from opfacade.programs.guarantees import Math


@dataclass(frozen=True)
class Printer:
    """inputs, numbers: names in their order."""

    program: Any
    inputs: Sequence[str]
    numbers: Sequence[str]
    math: Math

    def told(self, values: Sequence[Node], uniform: Sequence[Node] = ()) -> tuple[Any, tuple[int, ...]]:
        """(statements, where each value is among them). uniform: nodes that are known before."""
        nodes = _until(values, uniform)
        place = {node: i for i, node in enumerate(nodes)}
        names = {"input": self.inputs, "scalar": self.numbers}
        known = {node: ("uniform", node.type, i) for i, node in enumerate(uniform)}
        made = tuple(known.get(node) or source.statement(node, place, names, self.math) for node in nodes)
        return made, tuple(place[value] for value in values)

    def uniform(self, values: Sequence[Node]) -> tuple[Node, ...]:
        """The largest parts that are the same for all elements."""
        same: dict[Node, bool] = {}
        for node in ordered(values):
            same[node] = self._is_uniform(node) and all(same[arg] for arg in node.args)
        used = {arg for node in ordered(values) if not same[node] for arg in node.args} | set(values)
        return tuple(node for node in ordered(values) if same[node] and node.kind == "apply" and node in used)

    def hoisted(self, values: Sequence[Node]) -> tuple[Any, tuple[int, ...], tuple[str, ...]]:
        """(statements, values, types) of the uniform parts."""
        found = self.uniform(values)
        return (*self.told(found), tuple(node.type for node in found))

    def _is_uniform(self, node: Node) -> bool:
        if node.kind == "input":
            given = next(one for one in self.program.inputs if one.name == node.data)
            axes = range(len(self.program.shape)) if given.over is None else given.over
            return not set(axes) & set(self.program.fold)
        return node.kind not in ("coord", "read")


def _until(values: Sequence[Node], known: Sequence[Node]) -> list[Node]:
    """Nodes in an order in which each comes after its arguments, those of known nodes left out."""
    found: list[Node] = []
    seen: set[Node] = set()

    def visit(node: Node) -> None:
        if node in seen:
            return
        seen.add(node)
        for arg in () if node in known else node.args:
            visit(arg)
        found.append(node)

    for value in values:
        visit(value)
    return found
