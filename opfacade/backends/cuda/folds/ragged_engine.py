"""The CUDA engine of folds of rows of different lengths: a row's own length decides how many threads share it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import plain
from opfacade.backends.cuda.folds import column_config, column_engine, engine
from opfacade.backends.cuda.folds import config as fold_config
from opfacade.backends.cuda.folds.column_config import ColumnConfig, kept_last
from opfacade.backends.cuda.folds.layout import RowLayout
from opfacade.backends.cuda.folds.strategies import ragged, rows
from opfacade.backends.cuda.programs import source
from opfacade.core.candidate import Candidate, Launcher, Reason
from opfacade.core.descriptor import Descriptor
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._folds.op import FoldOp
from opfacade.plans._folds.program import FoldProgram

_EVIDENCE = (
    "tests/families/reduction/test_ragged.py::test_it_keeps_its_bound_on_every_layout",
    "tests/families/reduction/test_ragged.py::test_a_row_has_the_same_bits_in_any_batch_and_place",
)
_WARP = 32


@dataclass(frozen=True, slots=True)
class RaggedConfig:
    """batch: elements per thread that are loaded before the first is used."""

    batch: int

    @property
    def facts(self) -> dict[str, int | bool]:
        return {"span": _WARP}


class RaggedRows(RowLayout):
    impl, template, evidence, ragged = "ragged", "reduction/fold_ragged", _EVIDENCE, True
    changed: frozenset[str] = frozenset()

    def declines(self, program: FoldProgram, target: Target) -> Iterator[Reason]:
        if kept_last(program):
            yield Reason("OPF-S003", "fold", "a last axis that is kept", f"axis {len(program.shape) - 1}, the last one")

    def config(self, program: FoldProgram, target: Target) -> RaggedConfig:
        most = ragged.LIGHT_BATCH if _is_light(program) else ragged.MAX_BATCH
        return RaggedConfig(min(most, fold_config.elements_in_registers(program)))

    def chains(self, shape: object, summed: bool) -> int:
        return _WARP

    def held_elements(self, program: FoldProgram, target: Target) -> int:
        return 0

    def constants(self, program: FoldProgram, target: Target) -> dict[str, Any]:
        fused = fold_config.independent(program) and column_config.state_words(program) <= rows.STATE_WORDS
        found = {"rows": self.config(program, target).batch, "fused": fused, "in_columns": False, "columns": 0, "vector": 4}
        found |= {"warps": ragged.WARPS, "slots": ragged.slots(len(program.stages)), "short_row": ragged.SHORT_ROW}
        found |= {"group_rows": ragged.GROUP_ROWS, "group_batch": ragged.GROUP_BATCH, "elements_of_cta": ragged.ELEMENTS_OF_CTA}
        found |= {
            "grouped": bool(program.stages)
            and _is_light(program)
            and fold_config.elements_in_registers(program) >= ragged.GROUPED
        }
        return found | {"near": True, "inner": len(program.fold), "segmented": False, "ragged": program.ragged}

    def level(self, program: FoldProgram, axes: Sequence[int]) -> str:
        return "element" if set(axes) & set(program.fold) else "row"


def _is_light(program: FoldProgram) -> bool:
    """Whether a pass over the elements is so short that more loads in flight cost neither CTAs of an SM nor time to compile."""
    return fold_config.read_once(program) and column_config.state_words(program) <= ragged.LIGHT_STATES


class RaggedColumns(column_engine.ColumnLayout):
    impl, template, evidence, ragged = "ragged_columns", "reduction/fold_ragged", _EVIDENCE, True

    def config(self, program: FoldProgram, target: Target) -> ColumnConfig:
        vector = _vector(program)
        rows = max(1, min(ragged.MAX_BATCH, fold_config.elements_in_registers(program) // vector))
        return ColumnConfig(vector, ragged.COLUMN_GROUPS, 1 << (rows.bit_length() - 1), 1, False)

    def constants(self, program: FoldProgram, target: Target) -> dict[str, Any]:
        found = self.config(program, target).constants(program)
        return found | {"ragged": program.ragged, "in_columns": True}


def _vector(program: FoldProgram) -> int:
    """The number of columns that fill 16 bytes of the narrowest tensor with a value per element, at most 8."""
    overs = [(one.dtype, one.over) for one in program.tensors if one.over]
    sizes = [ITEMSIZE[dtype] for dtype, over in overs if 1 in over and max(over) > program.fold[-1]]
    return max(min(8, 16 // min(sizes, default=4)), 4 // min(sizes, default=4))


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedKernel(engine.FoldKernel[FoldOp]):
    def launcher(self, descriptor: FoldOp, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        if self.is_empty(descriptor):
            return support.nothing_to_do
        scalars = (*source.arguments(descriptor.folded()), ragged.MIN_CTAS * target.sm_count)
        return support.launcher(self.jit_spec(descriptor, target), plain(descriptor), sku, allow_build, False, scalars)


def ragged_kernels(descriptor: type[Descriptor[Any]]) -> tuple[Candidate, ...]:
    """The kernels of ragged rows for an op that is a fold."""
    return tuple(engine.fold_kernel(descriptor, layout, RaggedKernel) for layout in (RaggedRows(), RaggedColumns()))
