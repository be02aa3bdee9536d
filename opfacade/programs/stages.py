"""Stages of a fold: a value of each element and the reducer that joins the values along axes.

A stage folds all folded axes or some of them; later stages and outputs use its results as `stage(index, type, part)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from opfacade.core.model import FromList, Model
from opfacade.programs.expression import MAX_AXES, Node, apply, ordered, read
from opfacade.programs.fault import Fault
from opfacade.programs.fields import Axis, Expression
from opfacade.programs.node import make
from opfacade.programs.types import FLOATS, INTEGERS, NUMBERS, Type

ReducerName = Literal["sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "welford", "expsum"]


class Reducer(NamedTuple):
    """types: of the values that it takes. parts: name -> the type of that result; None: that of the value. of_empty: whether no
    values at all have a result."""

    types: Sequence[Type]
    parts: Mapping[str, Type | None]
    of_empty: bool = True


_VALUE: Mapping[str, Type | None] = {"value": None}
REDUCERS: Mapping[str, Reducer] = {
    **dict.fromkeys(("sum", "prod"), Reducer(NUMBERS, _VALUE)),
    **dict.fromkeys(("max", "min"), Reducer(NUMBERS, _VALUE, of_empty=False)),
    **dict.fromkeys(("any", "all"), Reducer(("bool",), _VALUE)),
    **dict.fromkeys(("argmax", "argmin"), Reducer(NUMBERS, {"value": None, "index": "i64"}, of_empty=False)),
    "welford": Reducer(FLOATS, {"mean": None, "m2": None}),
    "expsum": Reducer(FLOATS, {"max": None, "sum": None}),
}


class Stage(Model):
    """One reduction. The values are joined along `axes`: some of the folded axes, all where it is null. Along a folded axis
    that a stage does not join, its result differs where its value does.

    sum, prod: integers wrap. max, min: NaN wins, +0 is above -0. any, all: of truths. argmax, argmin: "value", and "index", the
    first place along the axes, counted with the last axis fastest; the first NaN wins. welford: "mean", and "m2", the sum of
    squared deviations from it. expsum: "max", and "sum", that of exp(x - max), in which an x equal to the maximum counts 1.
    """

    reducer: ReducerName = Field(description="The reduction.")
    value: Expression = Field(description="The value of an element: an expression (docs/programs.md).")
    axes: Annotated[tuple[Axis, ...], FromList, Field(min_length=1, max_length=MAX_AXES)] | None = Field(
        default=None, description="Folded axes along which values are reduced, in increasing order; null: all folded axes."
    )

    def part(self, name: str) -> Type:
        """The type of a result. KeyError for no part of the reducer."""
        return REDUCERS[self.reducer].parts[name] or self.value.type


def is_exact(reducer: str, part: str, value: Node) -> bool:
    """Whether a result has the same bits on every machine: integers are joined in any order."""
    joins_exactly = part == "max" or reducer in ("max", "min", "any", "all", "argmax", "argmin") or value.type in INTEGERS
    return value.exact and joins_exactly


def resolved(stages: Sequence[Stage], values: Iterable[Node]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The values of the stages and other values, whose stage leaves are exact where the stage is. Raises Fault."""
    known: dict[tuple[int, str], bool] = {}
    rebuilt: dict[Node, Node] = {}
    inner = []
    for index, stage in enumerate(stages):
        value = _rebuilt(stage.value, known, rebuilt)
        inner.append(value)
        known |= {(index, part): is_exact(stage.reducer, part, value) for part in REDUCERS[stage.reducer].parts}
    return tuple(inner), tuple(_rebuilt(value, known, rebuilt) for value in values)


def _rebuilt(root: Node, known: Mapping[tuple[int, str], bool], done: dict[Node, Node]) -> Node:
    for node in ordered([root]):
        if node not in done:
            done[node] = _with_args(node, tuple(done[arg] for arg in node.args), known)
    return done[root]


def _with_args(node: Node, args: tuple[Node, ...], known: Mapping[tuple[int, str], bool]) -> Node:
    if node.kind == "stage":
        if node.data not in known:
            raise Fault("", "a result of an earlier stage", f"stage {node.data[0]}, {node.data[1]}")
        return make("stage", "", (), node.data, node.type, known[node.data])
    return rebuilt(node, args)


def rebuilt(node: Node, args: tuple[Node, ...]) -> Node:
    """The same node of other arguments."""
    if args == node.args:
        return node
    if node.kind == "read":
        name, outside = node.data
        at, fill = (args[:-1], args[-1]) if outside == "fill" else (args, outside)
        return read(name, node.type, at, fill)
    return apply(node.op, *args)


def varies(node: Node, inputs: Mapping[str, Sequence[int]], stages: Sequence[frozenset[int]]) -> frozenset[int]:
    """The axes along which a value may differ. inputs: axes of each input; stages: those along which the result of each stage
    may differ."""
    found: frozenset[int] = frozenset()
    for one in ordered([node]):
        if one.kind == "input":
            found |= frozenset(inputs[one.data])
        elif one.kind == "coord":
            found |= {one.data}
        elif one.kind == "stage":
            found |= stages[one.data[0]]
    return found
