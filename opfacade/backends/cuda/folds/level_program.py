"""Splits a fold whose later stages join earlier results along other axes: a fold of groups, then a fold of their results.

A group is along the axes of the first stage. Values that depend on a group, and are constant along those axes, are outputs of
the first fold and inputs of the second. The second fold reads again the inputs that do not depend on groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from opfacade.errors import DescriptorError
from opfacade.plans._folds.checks import varying
from opfacade.plans._folds.program import FoldOutput, FoldProgram
from opfacade.plans._programs.args import MAX_INPUTS, MAX_OUTPUTS, MAX_SCALARS
from opfacade.programs.expression import Node, coord, extent, ordered, scalar, stage, value
from opfacade.programs.fields import Input, Number, used_names
from opfacade.programs.stages import Stage, rebuilt


@dataclass(frozen=True)
class Levels:
    """groups: the fold that writes its outputs to the workspace. rows: the fold that reads them as inputs of the same names."""

    groups: FoldProgram
    rows: FoldProgram

    @property
    def between(self) -> tuple[str, ...]:
        return tuple(made.name for made in self.groups.outputs)


@lru_cache(maxsize=1024)
def levels_of(program: FoldProgram) -> Levels | None:
    """None for a program without a second level, for one with more results of groups, inputs or numbers than a fold may have,
    and if the second fold would be invalid: a result of a group counts as different along each axis that the group lacks."""
    if not program.stages or program.in_place or program.joined(program.stages[0]) == program.fold:
        return None
    cut = _Cut(program)
    if len(cut.inner) == len(program.stages):
        return None
    stages, outputs = cut.cut_all()
    if not 0 < len(cut.found) <= MAX_OUTPUTS:
        return None
    of_rows = _Rows(cut, [*stages, *outputs])
    if len(of_rows.inputs) > MAX_INPUTS or len(of_rows.scalars) > MAX_SCALARS:
        return None
    try:
        return Levels(_groups(cut), of_rows.fold(stages, outputs))
    except DescriptorError:
        return None


@dataclass
class _Cut:
    """The stages of groups, and the other expressions with the results of groups as inputs."""

    program: FoldProgram
    found: dict[Node, Node] = field(default_factory=dict)  # an expression of groups -> the input that it becomes
    done: dict[Node, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.axes = self.program.joined(self.program.stages[0])
        self.inner: dict[int, int] = {}  # index of a stage -> its index among the stages of groups
        for i, one in enumerate(self.program.stages):
            if self.program.joined(one) == self.axes and _stages_in(one.value) <= self.inner.keys():
                self.inner[i] = len(self.inner)
        others = [i for i in range(len(self.program.stages)) if i not in self.inner]
        self.outer = {i: place for place, i in enumerate(others)}
        self.prefix = _unused(one.name for one in (*self.program.tensors, *self.program.scalars))

    def cut_all(self) -> tuple[list[Node], list[Node]]:
        """The values of the other stages, and of outputs."""
        stages = [self.cut(self.program.stages[i].value) for i in self.outer]
        return stages, [self.cut(made.value) for made in self.program.outputs]

    def cut(self, root: Node) -> Node:
        if root not in self.done:
            self.done[root] = self._as_input(root) if self._is_of_groups(root) else self._with_args(root)
        return self.done[root]

    def _is_of_groups(self, node: Node) -> bool:
        used = _stages_in(node)
        return bool(used) and used <= self.inner.keys() and not varying(self.program, node) & set(self.axes)

    def _as_input(self, node: Node) -> Node:
        if node not in self.found:
            self.found[node] = value(f"{self.prefix}{len(self.found)}", node.type)
        return self.found[node]

    def _with_args(self, node: Node) -> Node:
        if node.kind == "stage":
            index, part = node.data
            return stage(self.outer[index], node.type, part)
        return rebuilt(node, tuple(self.cut(arg) for arg in node.args))


class _Rows:
    """The second fold. It lacks those axes of the groups along which nothing differs."""

    def __init__(self, cut: _Cut, values: list[Node]) -> None:
        self.cut, program = cut, cut.program
        self.rest = tuple(axis for axis in range(len(program.shape)) if axis not in cut.axes)
        self.kept = range(len(program.shape)) if self._has_groups() else self.rest
        self.place = {axis: i for i, axis in enumerate(self.kept)}
        names = used_names({str(i): node for i, node in enumerate(values)})
        lost = sorted({node.data for node in ordered(values) if node.kind == "extent"} - self.place.keys())
        self.extents = {axis: Number(name=f"{cut.prefix}n{axis}", value=program.shape[axis], type="i64") for axis in lost}
        self.inputs = tuple(self._input(one) for one in program.inputs if one.name in names)
        self.inputs += tuple(Input(name=made.data, dtype=made.type, over=self._over(self.rest)) for made in cut.found.values())
        self.scalars = (*(one for one in program.scalars if one.name in names), *self.extents.values())

    def fold(self, stages: list[Node], outputs: list[Node]) -> FoldProgram:
        program = self.cut.program
        outer = [program.stages[i] for i in self.cut.outer]
        fold = tuple(self.place[axis] for axis in program.fold if axis in self.place)
        made = [
            Stage(reducer=one.reducer, value=self.moved(node), axes=self._joined(one, fold))
            for one, node in zip(outer, stages, strict=True)
        ]
        results = [
            FoldOutput(name=one.name, dtype=one.dtype, value=self.moved(node), over=self._over(program.axes_of(one)))
            for one, node in zip(program.outputs, outputs, strict=True)
        ]
        return FoldProgram(
            shape=tuple(program.shape[axis] for axis in self.kept), fold=fold, inputs=self.inputs, scalars=self.scalars,
            stages=tuple(made), outputs=tuple(results), num_valid=program.num_valid,
        )  # fmt: skip

    def _joined(self, one: Stage, fold: tuple[int, ...]) -> tuple[int, ...] | None:
        """The axes of a stage, which may be a part of those of the second fold: a third level."""
        axes = tuple(self.place[axis] for axis in self.cut.program.joined(one))
        return None if axes == fold else axes

    def _has_groups(self) -> bool:
        program, axes = self.cut.program, set(self.cut.axes)
        others = [program.stages[i] for i in self.cut.outer]
        if any(set(program.joined(one)) & axes or varying(program, one.value) & axes for one in others):
            return True
        return any(set(program.axes_of(made)) & axes for made in program.outputs)

    def moved(self, root: Node) -> Node:
        """With the axes of the second fold."""
        done: dict[Node, Node] = {}
        for node in ordered([root]):
            done[node] = self._leaf(node) if not node.args else rebuilt(node, tuple(done[arg] for arg in node.args))
        return done[root]

    def _leaf(self, node: Node) -> Node:
        if node.kind == "coord":
            return coord(self.place[node.data])
        if node.kind == "extent":
            return scalar(self.extents[node.data].name, "i64") if node.data in self.extents else extent(self.place[node.data])
        return node

    def _input(self, given: Input) -> Input:
        if given.shape is not None:
            return given
        every = range(len(self.cut.program.shape))
        return given.model_copy(update={"over": self._over(tuple(every if given.over is None else given.over))})

    def _over(self, axes: tuple[int, ...]) -> tuple[int, ...] | None:
        over = tuple(self.place[axis] for axis in axes)
        return None if over == tuple(range(len(self.kept))) else over


def _groups(cut: _Cut) -> FoldProgram:
    """The first fold. It has all axes of the program and folds those of the groups."""
    program, rest = cut.program, tuple(axis for axis in range(len(cut.program.shape)) if axis not in cut.axes)
    inner = [program.stages[i] for i in cut.inner]
    stages: list[Any] = [Stage(reducer=one.reducer, value=_numbered(cut, one.value)) for one in inner]
    outputs: list[Any] = [
        FoldOutput(name=made.data, dtype=made.type, value=_numbered(cut, node), over=rest) for node, made in cut.found.items()
    ]
    names = used_names({str(i): one.value for i, one in enumerate([*stages, *outputs])})
    return FoldProgram(
        shape=program.shape, fold=cut.axes, inputs=tuple(one for one in program.inputs if one.name in names),
        scalars=tuple(one for one in program.scalars if one.name in names), stages=tuple(stages), outputs=tuple(outputs),
        num_valid=program.num_valid,
    )  # fmt: skip


def _numbered(cut: _Cut, root: Node) -> Node:
    """The expression with the indices that stages have among those of groups."""
    done: dict[Node, Node] = {}
    for node in ordered([root]):
        if node.kind == "stage":
            done[node] = stage(cut.inner[node.data[0]], node.type, node.data[1])
        else:
            done[node] = rebuilt(node, tuple(done[arg] for arg in node.args))
    return done[root]


def _stages_in(node: Node) -> set[int]:
    return {one.data[0] for one in ordered([node]) if one.kind == "stage"}


def _unused(names: Iterable[str]) -> str:
    """A prefix that no name has."""
    known, prefix = list(names), "g"
    while any(name.startswith(prefix) for name in known):
        prefix += "_"
    return prefix
