"""Checks of the program of a fold; each refusal contains the path of the error."""

from __future__ import annotations

import math

from opfacade.plans._folds.ragged import check_ragged
from opfacade.plans._programs.map_checks import check as check_program
from opfacade.programs.expression import Node
from opfacade.programs.fault import Fault
from opfacade.programs.fields import FoldOutput
from opfacade.programs.program import Fold, Staged
from opfacade.programs.stages import REDUCERS, Stage, varies


def check(program: Fold) -> None:
    """Raises Fault for the first invalid axis, stage, node or output."""
    fold, rank = program.fold, len(program.shape)
    if list(fold) != sorted(set(fold)) or any(axis >= rank for axis in fold):
        raise Fault(".fold", f"some of the {rank} axes of shape, in increasing order", str(fold))
    if program.ragged:
        check_ragged(program)
    for i, stage in enumerate(program.stages):
        _check_stage(program, f".stages.{i}", stage)
    for i, output in enumerate(program.outputs):
        _check_over(program, f".outputs.{i}.over", output)
    check_program(program)
    for i, output in enumerate(program.outputs):
        _check_constant(program, f".outputs.{i}.value", output)
    for i, (name, _) in enumerate(program.in_place):
        if any(made.name == name and made.over is not None for made in program.outputs):
            raise Fault(f".in_place.{i}", "an output with all axes in order", name)
    if program.num_valid and 0 in fold:
        raise Fault(".num_valid", "an axis 0 that is not folded", "one that is folded")


def _check_stage(program: Fold, path: str, stage: Stage) -> None:
    fold, axes = program.fold, program.joined(stage)
    if list(axes) != sorted(set(axes)) or not set(axes) <= set(fold):
        raise Fault(f"{path}.axes", f"some of the folded axes {fold}, in increasing order", str(axes))
    reducer = REDUCERS[stage.reducer]
    if stage.value.type not in reducer.types:
        raise Fault(f"{path}.value", f"a value of type {' or '.join(reducer.types)} for {stage.reducer}", stage.value.type)
    if not program.ragged and not reducer.of_empty and math.prod(program.shape[axis] for axis in axes) == 0:
        raise Fault(f"{path}.axes", f"at least one element, because {stage.reducer} of zero elements is undefined", "none")


def _check_over(program: Fold, path: str, output: FoldOutput) -> None:
    """Checks that an output has all kept axes and the first folded axes, in any order."""
    axes, rank = program.axes_of(output), len(program.shape)
    axes = (0, *axes) if program.ragged and 0 not in axes else axes  # an element of axis 1 belongs to one row
    missing = tuple(axis for axis in range(rank) if axis not in axes)
    last = program.fold[len(program.fold) - len(missing) :] if missing else ()
    if len(set(axes)) != len(axes) or any(axis >= rank for axis in axes) or missing != last:
        raise Fault(path, f"each axis of shape once, except all or the last of the folded axes {program.fold}", str(axes))


def _check_constant(program: Fold, path: str, output: FoldOutput) -> None:
    """Checks that the value of an output does not depend on axes that the output lacks."""
    missing = frozenset(range(len(program.shape))) - frozenset(program.axes_of(output))
    missing -= {0} if program.ragged else set()
    found = sorted(varying(program, output.value) & missing)
    if found:
        raise Fault(path, f"a value that is constant along the axes {sorted(missing)}, which the output lacks",
                    f"a value that varies along {found}", "Reduce it in a stage.")  # fmt: skip


def varying(program: Staged, value: Node) -> frozenset[int]:
    """The axes along which a value of the program may vary."""
    every = range(len(program.shape))
    inputs = {one.name: () if one.shape is not None else every if one.over is None else one.over for one in program.inputs}
    stages: list[frozenset[int]] = []
    for stage in program.stages:
        stages.append(varies(stage.value, inputs, stages) - frozenset(program.joined(stage)))
    return varies(value, inputs, stages)
