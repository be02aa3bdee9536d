"""Prints expressions of a fold as statements. Parts that are the same for all elements of a row or group are computed once,
first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from opfacade.backends.cuda.programs import source
from opfacade.plans._folds.program import FoldProgram
from opfacade.programs.expression import Node, ordered
from opfacade.programs.guarantees import Math


@dataclass(frozen=True)
class Printer:
    """inputs, numbers: names, in the order of the program."""

    program: FoldProgram
    inputs: Sequence[str]
    numbers: Sequence[str]
    math: Math

    @classmethod
    def of(cls, program: FoldProgram, math: Math) -> Printer:
        inputs, numbers = ([one.name for one in named] for named in (program.inputs, program.scalars))
        return cls(program, inputs, numbers, math)

    def told(self, values: Sequence[Node], uniform: Sequence[Node] = ()) -> tuple[Any, tuple[int, ...]]:
        """(statements, name of each value). uniform: nodes that are computed before."""
        nodes = _until(values, uniform)
        place = {node: i for i, node in enumerate(nodes)}
        names = {"input": self.inputs, "scalar": self.numbers}
        known = {node: ("uniform", node.type, i) for i, node in enumerate(uniform)}
        made = tuple(known.get(node) or self._statement(node, place, names) for node in nodes)
        return made, tuple(place[value] for value in values)

    def _statement(self, node: Node, place: Mapping[Node, int], names: Mapping[str, Sequence[str]]) -> source.Statement:
        found = source.statement(node, place, names, self.math)
        if found[0] != "div_" or node not in stored_quotients(self.program):
            return found
        dtype = {one.name: one.dtype for one in self.program.inputs}.get(
            node.args[0].data if node.args[0].kind == "input" else ""
        )
        return ("quotient_short_" if dtype in ("f16", "bf16") else "quotient_", *found[1:])

    def uniform(self, values: Sequence[Node]) -> tuple[Node, ...]:
        """The largest subexpressions that are the same for all elements."""
        same: dict[Node, bool] = {}
        for node in ordered(values):
            same[node] = self._is_uniform(node) and all(same[arg] for arg in node.args)
        used = {arg for node in ordered(values) if not same[node] for arg in node.args} | set(values)
        return tuple(node for node in ordered(values) if same[node] and node.kind == "apply" and node in used)

    def hoisted(self, values: Sequence[Node]) -> tuple[Any, tuple[int, ...], tuple[str, ...]]:
        """(statements, values, types) of the uniform subexpressions."""
        found = self.uniform(values)
        return (*self.told(found), tuple(node.type for node in found))

    def _is_uniform(self, node: Node) -> bool:
        if node.kind == "input":
            given = next(one for one in self.program.inputs if one.name == node.data)
            axes = range(len(self.program.shape)) if given.over is None else given.over
            return not set(axes) & set(self.program.fold)
        return node.kind not in ("coord", "read")


@lru_cache(maxsize=1024)
def stored_quotients(program: FoldProgram) -> frozenset[Node]:
    """Quotients that only 8-bit outputs use: their last bits matter only if they change the stored value."""
    values, outputs = program.resolved
    uses = Counter(arg for node in ordered((*values, *outputs)) for arg in node.args) + Counter(outputs)
    found = set()
    for made, node in zip(program.outputs, outputs, strict=True):
        while made.dtype == "i8" and uses[node] == 1 and node.op in ("i8", "rint"):
            node = node.args[0]
        if made.dtype in ("i8", "f8_e4m3", "f8_e5m2") and uses[node] == 1 and node.op == "div" and node.type == "f32":
            found.add(node)
    return frozenset(found)


def _until(values: Sequence[Node], known: Sequence[Node]) -> list[Node]:
    """Nodes in an order in which each comes after its arguments. Known nodes are left out."""
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
