"""How few long rows are cut into parts that CTAs fold: a function of how many there are, of their length and of the GPU.

The chunk, elements of a part, is all that the bits of a row depend on, and the SKU names it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from opfacade.backends.cuda.folds import column_config
from opfacade.backends.cuda.folds import config as fold_config
from opfacade.backends.cuda.folds.strategies import columns, rows, split
from opfacade.core.candidate import WORKSPACE_ALIGNMENT
from opfacade.core.target import Target
from opfacade.plans._folds.program import FoldProgram


@dataclass(frozen=True, slots=True)
class SplitConfig:
    """groups, rows: of a fold in columns; 0 in rows. batch: of a fold in rows."""

    chunk: int
    parts: int
    vector: int
    batch: int = 0
    groups: int = 0
    rows: int = 0

    @property
    def lanes(self) -> int:
        """Threads that share the terms of a part."""
        return self.groups or split.THREADS

    @property
    def facts(self) -> dict[str, int | bool]:
        """Facts of a SKU that determine the order of additions."""
        found: dict[str, int | bool] = {"chunk": self.chunk, "vector": self.vector}
        return found | ({"groups": self.groups, "rows": self.rows} if self.groups else {"span": split.THREADS})


def in_rows(program: FoldProgram, target: Target) -> SplitConfig:
    vector = fold_config.vector_of(program)
    batch = max(1, min(split.MAX_BATCH, fold_config.elements_in_registers(program) // vector))
    chunk, parts = _cut(program, split.CTAS_OF_ROWS * target.sm_count // max(1, _kept(program)), split.LEAST_ROW)
    return SplitConfig(chunk, parts, vector, batch=batch)


def in_columns(program: FoldProgram, target: Target) -> SplitConfig:
    shape = column_config.config(program, target)
    groups = columns.GROUPS[-1]
    kept = math.prod(program.shape[program.fold[-1] + 1 :])
    tiles = _kept(program) // max(1, kept) * -(-kept // (columns.THREADS // groups * shape.vector))
    chunk, parts = _cut(program, split.CTAS_OF_COLUMNS * target.sm_count // max(1, tiles), split.LEAST_COLUMN)
    return SplitConfig(chunk, parts, shape.vector, groups=groups, rows=shape.rows)


def workspace_bytes(program: FoldProgram, shape: SplitConfig) -> int:
    """One state per stage, row and part."""
    needed = _kept(program) * shape.parts * 4 * column_config.state_words(program)
    return -(-needed // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


def fuses(program: FoldProgram, vector: int) -> bool:
    """Whether one pass over the elements of a row joins all stages."""
    chains = max((1 if stage.reducer == "expsum" else 4 for stage in program.stages), default=1)
    return chains * column_config.state_words(program) <= rows.STATE_WORDS


def _kept(program: FoldProgram) -> int:
    return math.prod(program.shape[axis] for axis in program.kept)


def _cut(program: FoldProgram, wanted: int, least: int) -> tuple[int, int]:
    """(chunk, parts) of a row that `wanted` CTAs fold. A chunk has three significant bits, so that few lengths share a SKU."""
    folded = math.prod(program.shape[axis] for axis in program.fold)
    chunk = max(least, -(-folded // max(1, min(wanted, split.MAX_PARTS))))
    unit = 1 << max(0, (chunk - 1).bit_length() - 3)
    chunk = -(-chunk // unit) * unit
    return chunk, -(-folded // chunk)
