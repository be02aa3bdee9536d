"""The CUDA engine of folds that no faster kernel supports: any program, one CTA per row.

The results of a stage, one for each position along the folded axes that it does not join and along which they differ, are
written to the workspace. Later stages and outputs read these results, and read the elements again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import plain
from opfacade.backends.cuda.folds import engine
from opfacade.backends.cuda.folds.kept import MAX_ROW
from opfacade.backends.cuda.folds.layout import RowLayout
from opfacade.backends.cuda.folds.printer import Printer
from opfacade.backends.cuda.folds.strategies import general
from opfacade.backends.cuda.programs import source
from opfacade.core.candidate import WORKSPACE_ALIGNMENT, Candidate, Launcher, Reason
from opfacade.core.descriptor import Descriptor
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._folds.checks import varying
from opfacade.plans._folds.form import cached_by_form
from opfacade.plans._folds.op import FoldOp
from opfacade.plans._folds.program import FoldProgram
from opfacade.programs.expression import Node, ordered
from opfacade.programs.guarantees import Math
from opfacade.programs.stages import REDUCERS, Stage

_EVIDENCE = (
    "tests/families/reduction/test_general.py::test_it_keeps_its_bound_on_every_layout",
    "tests/families/reduction/test_general.py::test_bits_do_not_depend_on_the_path_nor_on_other_rows",
)
_WARP = 32
_TREE = 2 + 5 + 3  # roundings of lanes and warps


@dataclass(frozen=True, slots=True)
class GeneralConfig:
    """A warp joins the values of a result. If a row has fewer results than the CTA has warps, all warps join each result."""

    @property
    def facts(self) -> dict[str, int | bool]:
        return {"span": _WARP * general.WARPS, "group": _WARP}


class GeneralLayout(RowLayout):
    impl, template, evidence, tree = "general", "reduction/fold_general", _EVIDENCE, _TREE
    changed: frozenset[str] = frozenset()

    def declines(self, program: FoldProgram, target: Target) -> Iterator[Reason]:
        """Limits the results per row. An axis of size 0 counts as 1, because stages that join this axis still have results."""
        row = math.prod(max(1, program.shape[axis]) for axis in program.fold)
        yield from support.limit_reason("OPF-S004", "fold (results of a row)", row, MAX_ROW)

    def config(self, program: FoldProgram, target: Target) -> GeneralConfig:
        return GeneralConfig()

    def math(self, program: FoldProgram) -> Math:
        return "device"

    def chains(self, shape: GeneralConfig, summed: bool) -> int:
        return _WARP

    def held_elements(self, program: FoldProgram, target: Target) -> int:
        return 0

    def level(self, program: FoldProgram, axes: Sequence[int]) -> str:
        return "element"

    def constants(self, program: FoldProgram, target: Target) -> dict[str, Any]:
        return {"inner": len(program.fold), "warps": general.WARPS} | _parts(self, program)


def _parts(layout: RowLayout, program: FoldProgram) -> dict[str, Any]:
    """Statements of the stages and of the outputs, with the places and the reads of each."""
    printer, (values, outputs) = Printer.of(program, layout.math(program)), program.resolved
    stages = list(zip(program.stages, values, strict=True))
    passes = tuple(
        (made, _places(program, set(program.axes_of(program.outputs[made[0]]))), _used(program, nodes), printer.told(nodes))
        for made in _alike(program)
        for nodes in [[outputs[k] for k in made]]
    )
    return {
        "stages": tuple((one.reducer, node.type, *printer.told([node])) for one, node in stages),
        "stage_places": tuple(
            (_places(program, set(program.joined(one))), _places(program, _apart(program, one)), _used(program, [node]))
            for one, node in stages
        ),
        "uniform": (((), (), ()),) * (len(stages) + 1),
        "passes": passes,
    }


def _alike(program: FoldProgram) -> list[tuple[int, ...]]:
    """Indices of the outputs, grouped by the set of their axes."""
    found: dict[frozenset[int], tuple[int, ...]] = {}
    for k, made in enumerate(program.outputs):
        axes = frozenset(program.axes_of(made))
        found[axes] = (*found.get(axes, ()), k)
    return list(found.values())


def _apart(program: FoldProgram, stage: Stage) -> set[int]:
    """Axes along which results of a stage differ."""
    return set(varying(program, stage.value)) - set(program.joined(stage))


def _places(program: FoldProgram, axes: set[int]) -> tuple[int, ...]:
    """The folded axes among `axes`, with their numbers in the kernel, where the kept axes come first."""
    return tuple(len(program.kept) + i for i, axis in enumerate(program.fold) if axis in axes)


def _used(program: FoldProgram, values: Sequence[Node]) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Indices of the inputs that the values read, and (stage, index of the part) of the results that they read."""
    names = [one.name for one in program.inputs]
    nodes = list(ordered(values))
    inputs = sorted({names.index(node.data) for node in nodes if node.kind == "input"})
    results = {node.data for node in nodes if node.kind == "stage"}
    parts = {(stage, list(REDUCERS[program.stages[stage].reducer].parts).index(part)) for stage, part in results}
    return tuple(inputs), tuple(sorted(parts))


def _bytes_of_row(program: FoldProgram) -> int:
    """Bytes of the results of all stages for one row."""
    return general.RESULT_BYTES * sum(
        parts * math.prod([program.shape[axis] for axis in axes]) for parts, axes in _results(program)
    )


@cached_by_form
def _results(program: FoldProgram) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """For each stage: the number of parts of a result, and the folded axes along which the results of a row differ."""
    return tuple(
        (len(REDUCERS[stage.reducer].parts), tuple(sorted(_apart(program, stage) & set(program.fold))))
        for stage in program.stages
    )


def _ctas(program: FoldProgram, target: Target) -> int:
    """The number of CTAs that share the rows. The bits of the results do not depend on it."""
    rows: int = math.prod(program.shape[axis] for axis in program.kept)
    fitting = general.MAX_BYTES // max(1, _bytes_of_row(program))
    return max(1, min(rows, general.MAX_CTAS * target.sm_count, fitting))


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralKernel(engine.FoldKernel[FoldOp]):
    """A fold kernel with a workspace for the results of stages."""

    def workspace(self, descriptor: FoldOp, target: Target) -> int:
        """Never empty, because the launch passes its address even if the program has no stages."""
        program = self.launched(descriptor)
        needed = _ctas(program, target) * _bytes_of_row(program)
        return max(1, -(-needed // WORKSPACE_ALIGNMENT)) * WORKSPACE_ALIGNMENT

    def launcher(self, descriptor: FoldOp, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        if self.is_empty(descriptor):
            return support.nothing_to_do
        program = self.launched(descriptor)
        scalars = (*source.arguments(program), _ctas(program, target))
        return support.launcher(self.jit_spec(descriptor, target), plain(descriptor), sku, allow_build, True, scalars)


def general_kernel(descriptor: type[Descriptor[Any]]) -> Candidate:
    """The last candidate of a fold op: this kernel supports any program."""
    return engine.fold_kernel(descriptor, GeneralLayout(), GeneralKernel)
