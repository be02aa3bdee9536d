"""Decides which rows pass through shared memory if they are not aligned (kernels/reduction/flat.cuh)."""

from __future__ import annotations

from opfacade.backends.cuda.folds.config import Config, inner_axes, placed, read_once, varies
from opfacade.backends.cuda.folds.strategies import flat as numbers
from opfacade.core.dtypes import ITEMSIZE
from opfacade.plans._folds.form import cached_by_form
from opfacade.plans._folds.program import FoldProgram
from opfacade.programs.fields import Input


def flat(program: FoldProgram, shape: Config) -> bool:
    """Whether unaligned rows, LEAST_BYTES or more in total, pass through shared memory: rows that are read once, rows of one or
    two elements, and 16-bit rows that have few lanes, or a warp that would shift several vectors per lane."""
    if not shape.held or shape.scattered or shape.cluster != 1:
        return False
    once, again, most = _flat_form(program)
    if once or not again:
        return once
    few = shape.threads in numbers.LANES or (shape.threads == 32 and shape.pieces > 1)
    return (most <= numbers.MAX_SIZE and few) or (shape.threads == 1 and shape.vector == 2)


@cached_by_form
def _flat_form(program: FoldProgram) -> tuple[bool, bool, int]:
    """(whether rows may be flat because they are read once, whether short rows may that are read again, bytes per element of
    the widest input)."""
    whole = (inner_axes(program) or program.fold) == program.fold
    alike = (one.over is None or not varies(program, one) or is_shared(program, one) for one in program.inputs)
    plain = all(one.shape is None for one in program.inputs) and bool(program.stages) and not placed(program)
    fits = whole and plain and all(alike)
    once = read_once(program)
    return fits and once, fits and not once, max((ITEMSIZE[one.dtype] for one in program.inputs), default=4)


def is_shared(program: FoldProgram, given: Input) -> bool:
    """Whether an input differs along a row, and all rows share it."""
    differs = given.shape is None and given.over is not None and varies(program, given)
    return differs and not set(given.over or ()) & set(program.kept)
