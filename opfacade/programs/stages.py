"""Stages of a fold: a value per element, and the reducer that combines the values along axes.

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
    """types: allowed types of values. parts: name of a result -> its type; None: the type of the value. of_empty: whether zero
    values have a result."""

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
    """One reduction. `axes`: the folded axes along which values are reduced; null: all. The result may vary along the other
    folded axes.

    sum, prod: integers wrap. max, min: NaN wins, and -0 is below +0. any, all: for bool. argmax, argmin: "value", and "index",
    the first position along the axes, with the last axis fastest; the first NaN wins. welford: "mean", and "m2", the sum of
    squared deviations from the mean. expsum: "max", and "sum", the sum of exp(x - max), in which an x equal to the maximum
    counts as 1.
    """

    reducer: ReducerName = Field(description="The reduction.")
    value: Expression = Field(description="The value of an element: an expression (docs/programs.md).")
    axes: Annotated[tuple[Axis, ...], FromList, Field(min_length=1, max_length=MAX_AXES)] | None = Field(
        default=None, description="Folded axes along which values are reduced, in increasing order; null: all folded axes."
    )

    def part(self, name: str) -> Type:
        """The type of a result. Raises KeyError if the reducer has no such result."""
        return REDUCERS[self.reducer].parts[name] or self.value.type


def is_exact(reducer: str, part: str, value: Node) -> bool:
    """Whether a result has the same bits on every machine, as for integers, whose order does not matter."""
    joins_exactly = part == "max" or reducer in ("max", "min", "any", "all", "argmax", "argmin") or value.type in INTEGERS
    return value.exact and joins_exactly


def resolved(stages: Sequence[Stage], values: Iterable[Node]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The values of the stages and other values; a stage leaf in them is exact if its stage is exact. Raises Fault."""
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
    """The same node with other arguments."""
    if args == node.args:
        return node
    if node.kind == "read":
        name, outside = node.data
        at, fill = (args[:-1], args[-1]) if outside == "fill" else (args, outside)
        return read(name, node.type, at, fill)
    return apply(node.op, *args)


def varies(node: Node, inputs: Mapping[str, Sequence[int]], stages: Sequence[frozenset[int]]) -> frozenset[int]:
    """The axes along which a value may vary. inputs: the axes of each input. stages: the axes along which each stage result may
    vary."""
    found: frozenset[int] = frozenset()
    for one in ordered([node]):
        if one.kind == "input":
            found |= frozenset(inputs[one.data])
        elif one.kind == "coord":
            found |= {one.data}
        elif one.kind == "stage":
            found |= stages[one.data[0]]
    return found
