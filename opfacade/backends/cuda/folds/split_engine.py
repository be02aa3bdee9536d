"""The CUDA engine of folds with `split="auto"`: CTAs fold parts of few long rows or columns, and a second launch joins them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import plain
from opfacade.backends.cuda.folds import column_engine, engine, split_config
from opfacade.backends.cuda.folds import config as fold_config
from opfacade.backends.cuda.folds.column_config import ColumnConfig, kept_last
from opfacade.backends.cuda.folds.layout import RowLayout
from opfacade.backends.cuda.folds.split_config import SplitConfig
from opfacade.backends.cuda.folds.strategies import split
from opfacade.backends.cuda.programs import source
from opfacade.core.candidate import Candidate, Launcher, Reason
from opfacade.core.descriptor import Descriptor
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._folds.op import FoldOp
from opfacade.plans._folds.program import FoldProgram

_EVIDENCE = (
    "tests/families/reduction/test_split.py::test_it_keeps_its_bound_on_every_layout",
    "tests/families/reduction/test_split.py::test_bits_do_not_depend_on_the_path_nor_on_other_rows_of_the_same_chunk",
)
_TREE = 2 + 2 + 5 + 8 + 5 + split.MAX_PARTS // 32  # as a row's, then of lanes and of parts


def refusals(program: FoldProgram) -> Iterator[Reason]:
    """Programs that cannot be split."""
    if program.split == "off":
        yield Reason("OPF-S003", "split", "off", "auto")
    if not program.stages or not fold_config.independent(program):
        yield Reason("OPF-S003", "stages", "a stage that uses another, or none", "stages that do not use each other")
    yield from column_engine.whole_columns(program)
    if any(set(program.axes_of(made)) & set(program.fold) for made in program.outputs):
        yield Reason("OPF-S003", "outputs.over", "folded axes", "kept axes alone: elements are read once")


def few_parts(program: FoldProgram, shape: Callable[[FoldProgram, Target], SplitConfig], target: Target) -> Iterator[Reason]:
    """Without `split`, sizes decide nothing, so refusals are the same for all sizes."""
    if program.split != "off" and shape(program, target).parts < 2:
        yield Reason("OPF-S003", "shape", "short rows, or as many as fill the GPU", "few long rows")


class SplitRows(RowLayout):
    impl, template, evidence = "split", "reduction/fold_split", _EVIDENCE
    changed = frozenset({"welford"})
    tree, cuts = _TREE, True

    def declines(self, program: FoldProgram, target: Target) -> Iterator[Reason]:
        if kept_last(program):
            yield Reason("OPF-S003", "fold", "a last axis that is kept", f"axis {len(program.shape) - 1}, the last one")
        yield from refusals(program)
        yield from few_parts(program, self.config, target)

    def config(self, program: FoldProgram, target: Target) -> SplitConfig:
        return split_config.in_rows(program, target)

    def held_elements(self, program: FoldProgram, target: Target) -> int:
        return 0

    def constants(self, program: FoldProgram, target: Target) -> dict[str, Any]:
        shape = self.config(program, target)
        lanes = {"vector": shape.vector, "batch": shape.batch, "fused": split_config.fuses(program, shape.vector)}
        lanes |= {"threads": split.THREADS, "slots": split.slots(len(program.stages)), "merge_warps": split.MERGE_WARPS}
        return lanes | {
            "near": True,
            "inner": len(program.fold),
            "segmented": False,
            "split": True,
            "in_columns": False,
            "columns": 0,
        }


class SplitColumns(column_engine.ColumnLayout):
    impl, template, evidence = "split_columns", "reduction/fold_split", _EVIDENCE
    tree, cuts = _TREE, True

    def declines(self, program: FoldProgram, target: Target) -> Iterator[Reason]:
        yield from super().declines(program, target)
        yield from refusals(program)
        yield from few_parts(program, self.config, target)

    def config(self, program: FoldProgram, target: Target) -> SplitConfig:
        return split_config.in_columns(program, target)

    def constants(self, program: FoldProgram, target: Target) -> dict[str, Any]:
        shape = self.config(program, target)
        columns = ColumnConfig(shape.vector, shape.groups, shape.rows, 1, False)
        return columns.constants(program) | {"split": True, "in_columns": True, "merge_warps": split.MERGE_WARPS}


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitKernel(engine.FoldKernel[FoldOp]):
    """With a workspace for the states of parts."""

    def workspace(self, descriptor: FoldOp, target: Target) -> int:
        program = descriptor.folded()
        return split_config.workspace_bytes(program, self.layout.config(program, target))

    def launcher(self, descriptor: FoldOp, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        if self.is_empty(descriptor):
            return support.nothing_to_do
        scalars = (*source.arguments(descriptor.folded()), self.layout.config(descriptor.folded(), target).chunk)
        return support.launcher(self.jit_spec(descriptor, target), plain(descriptor), sku, allow_build, True, scalars)


def split_kernels(descriptor: type[Descriptor[Any]]) -> tuple[Candidate, ...]:
    """The kernels that fold parts, for an op that is a fold."""
    return tuple(engine.fold_kernel(descriptor, layout, SplitKernel) for layout in (SplitRows(), SplitColumns()))
