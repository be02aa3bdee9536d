"""The CUDA engine of folds in which later stages join the results of groups: two launches, with the results of groups in the
workspace. Each launch is a fold in rows or in columns, so the bits of a group follow from its elements, and those of a row from
its groups."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import plain
from opfacade.backends.cuda.folds import engine
from opfacade.backends.cuda.folds.column_engine import ColumnLayout
from opfacade.backends.cuda.folds.layout import RowLayout, math_of
from opfacade.backends.cuda.folds.level_program import Levels, levels_of
from opfacade.backends.cuda.programs import source
from opfacade.core.candidate import WORKSPACE_ALIGNMENT, Candidate, Launcher, Reason
from opfacade.core.descriptor import Descriptor
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._folds.op import FoldOp
from opfacade.plans._folds.program import FoldProgram
from opfacade.programs.guarantees import Math

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

_EVIDENCE = (
    "tests/families/reduction/test_levels.py::test_it_keeps_its_bound_on_every_layout",
    "tests/families/reduction/test_levels.py::test_bits_do_not_depend_on_the_path_nor_on_other_rows",
)
_LAYOUTS = {"columns": ColumnLayout(), "rows": RowLayout()}


@dataclass(frozen=True, slots=True)
class LevelConfig:
    """groups, rows: the configurations of the two folds."""

    groups: Any
    rows: Any
    in_columns: tuple[bool, bool]

    @property
    def facts(self) -> dict[str, int | bool]:
        """Facts of a SKU that determine the order of additions."""
        found: dict[str, int | bool] = {f"group_{name}": fact for name, fact in self.groups.facts.items()}
        found |= {f"row_{name}": fact for name, fact in self.rows.facts.items()}
        return found


class LevelLayout(RowLayout):
    impl, template, evidence = "levels", "reduction/fold_levels", _EVIDENCE

    def declines(self, program: FoldProgram, target: Target) -> Iterator[Reason]:
        levels = levels_of(program)
        if levels is None:
            yield Reason("OPF-S003", "stages", "other ones", "stages of groups, then stages that join up to 4 results of them")
            return
        for part in (levels.groups, levels.rows):
            if not any(not list(engine.refusals(layout, part, target)) for layout in _LAYOUTS.values()):
                yield from engine.refusals(_LAYOUTS["rows"], part, target)

    def config(self, program: FoldProgram, target: Target) -> LevelConfig:
        levels = _levels(program)
        names = [_name(part, target) for part in (levels.groups, levels.rows)]
        groups, rows = (
            _LAYOUTS[name].config(part, target) for name, part in zip(names, (levels.groups, levels.rows), strict=True)
        )
        return LevelConfig(groups, rows, (names[0] == "columns", names[1] == "columns"))

    def revision(self, program: FoldProgram) -> int:
        """One more where stages join a part of the axes of results of groups: they have joined all of them."""
        rows = _levels(program).rows
        parts = len(rows.shape) < len(program.shape) and any(rows.joined(stage) != rows.fold for stage in rows.stages)
        return super().revision(program) + int(parts)

    def math(self, program: FoldProgram) -> Math:
        """Approximate if either fold is."""
        levels = _levels(program)
        return "approx" if "approx" in (math_of(levels.groups), math_of(levels.rows)) else "device"

    def steps(self, shape: LevelConfig, summed: bool) -> tuple[int, int]:
        """For both folds: the chains of the one that has more, with what a thread of the other holds; else the fewest."""
        parts = zip(shape.in_columns, (shape.groups, shape.rows), strict=True)
        few, many = sorted(
            (_LAYOUTS["columns" if in_columns else "rows"].chains(part, summed), part.most_terms or math.inf)
            for in_columns, part in parts
        )
        if few[1] == math.inf:
            return few[0], self.tree
        return many[0], self.tree + int(few[1])


def _levels(program: FoldProgram) -> Levels:
    found = levels_of(program)
    if found is None:
        raise ValueError("a program without levels has been declined")
    return found


def _name(part: FoldProgram, target: Target) -> str:
    return next(name for name, layout in _LAYOUTS.items() if not list(engine.refusals(layout, part, target)))


def _offsets(levels: Levels) -> list[int]:
    """Offset of each result of the groups in the workspace, and the end of the last one."""
    found = [0]
    for made in levels.groups.outputs:
        needed = ITEMSIZE[made.dtype] * math.prod(levels.groups.shape[axis] for axis in made.over or ())
        found.append(found[-1] + -(-needed // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelKernel(engine.FoldKernel[FoldOp]):
    """With a workspace for the results of groups."""

    def workspace(self, descriptor: FoldOp, target: Target) -> int:
        """Not empty, because the launch takes its address also where there are no groups."""
        return max(WORKSPACE_ALIGNMENT, _offsets(_levels(descriptor.folded()))[-1])

    def jit_spec(self, descriptor: FoldOp, target: Target) -> JitSpec:
        program = descriptor.folded()
        levels = _levels(program)
        given = [one.name for one in program.tensors]
        parts = tuple(
            (_name(part, target), support.pairs(**_constants(levels, space, part, given, target)))
            for space, part in (("groups", levels.groups), ("rows", levels.rows))
        )
        told: dict[str, Any] = {"levels": parts, "given": len(given), "between": len(levels.between)}
        told |= {"num_valid": True} if program.num_valid else {}
        return support.spec_of(self.layout.template, support.pairs(**told), target)

    def launcher(self, descriptor: FoldOp, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        if self.is_empty(descriptor):
            return support.nothing_to_do
        levels = _levels(descriptor.folded())
        scalars = (*source.arguments(levels.groups.folded()), *source.arguments(levels.rows.folded()), *_offsets(levels)[:-1])
        return support.launcher(self.jit_spec(descriptor, target), plain(descriptor), sku, allow_build, True, scalars)


def _constants(levels: Levels, space: str, part: FoldProgram, given: list[str], target: Target) -> dict[str, Any]:
    """The constants of a fold, its name, and the location of its tensors: the index of an operand, or -1, -2 and so on for
    results of groups."""
    own = [one.name for one in part.tensors]
    places = tuple(given.index(name) if name in given else -1 - levels.between.index(name) for name in own)
    found = engine.constants(_LAYOUTS[_name(part, target)], part.folded(), part.dims(), target)
    return found | {"space": space, "places": places}


def level_kernel(descriptor: type[Descriptor[Any]]) -> Candidate:
    """The kernel with two launches, for an op that is a fold."""
    return engine.fold_kernel(descriptor, LevelLayout(), LevelKernel)
