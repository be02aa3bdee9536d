"""The CUDA engine of folds whose last axis is kept: neighbouring threads take neighbouring elements of it.

The order of the axes of `shape` is the order in memory: the last one has stride 1. So the choice follows from the descriptor;
other strides give the same bits, slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from opfacade.backends.cuda.folds import engine
from opfacade.backends.cuda.folds.column_config import ColumnConfig, config, kept_last
from opfacade.backends.cuda.folds.layout import RowLayout
from opfacade.core.candidate import Candidate, Reason
from opfacade.core.descriptor import Descriptor
from opfacade.core.target import Target
from opfacade.plans._folds.program import FoldProgram

_EVIDENCE = (
    "tests/families/reduction/test_columns.py::test_it_keeps_its_bound_on_every_layout",
    "tests/families/reduction/test_columns.py::test_bits_do_not_depend_on_the_path_nor_on_other_columns",
)


def whole_columns(program: FoldProgram) -> Iterator[Reason]:
    """Stages and outputs along a part of the folded axes."""
    kept = set(program.kept)
    if any(program.joined(stage) != program.fold for stage in program.stages):
        yield Reason("OPF-S003", "stages.axes", "a part of the folded axes", "all folded axes")
    if any(kept < set(program.axes_of(made)) < set(range(len(program.shape))) for made in program.outputs):
        yield Reason("OPF-S003", "outputs.over", "a part of the folded axes", "all folded axes, or none")


class ColumnLayout(RowLayout):
    """How threads share the work of a fold, for `FoldKernel`."""

    impl, template, evidence = "columns", "reduction/fold_columns", _EVIDENCE
    changed: frozenset[str] = frozenset()

    def declines(self, program: FoldProgram, target: Target) -> Iterator[Reason]:
        if not kept_last(program):
            yield Reason("OPF-S003", "fold", f"axis {program.fold[-1]}, the last one", "a last axis that is kept")
        yield from whole_columns(program)

    def config(self, program: FoldProgram, target: Target) -> Any:
        return config(program, target)

    def chains(self, shape: ColumnConfig, summed: bool) -> int:
        return shape.lanes

    def held_elements(self, program: FoldProgram, target: Target) -> int:
        return 0

    def constants(self, program: FoldProgram, target: Target) -> dict[str, Any]:
        return config(program, target).constants(program)

    def level(self, program: FoldProgram, axes: Sequence[int]) -> str:
        """Whether a value with these axes exists per element, per folded element or per column."""
        if not set(axes) & set(program.fold):
            return "row"
        return "element" if any(axis > program.fold[-1] for axis in axes) else "group"


def fold_kernels(descriptor: type[Descriptor[Any]]) -> tuple[Candidate, ...]:
    """The kernels in columns and in rows for an op that is a fold."""
    return engine.fold_kernel(descriptor, ColumnLayout()), engine.fold_kernel(descriptor)
