"""How threads share the columns of a fold whose last axis is kept. It depends on the number of folded elements and on dtypes,
never on the number of columns.

Each thread has one vector of columns. `groups` groups of threads in each of `cluster` CTAs take the folded elements in turn,
`rows` at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from opfacade.backends.cuda.folds import config as fold_config
from opfacade.backends.cuda.folds.strategies import columns
from opfacade.backends.cuda.folds.strategies import rows as row_numbers
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.target import Target
from opfacade.plans._folds.program import FoldProgram
from opfacade.programs.stages import REDUCERS, Stage


@dataclass(frozen=True, slots=True)
class ColumnConfig:
    vector: int
    groups: int
    rows: int
    cluster: int
    held: bool  # all elements of a thread are in registers

    @property
    def lanes(self) -> int:
        """Threads that share the terms of a column."""
        return self.groups * self.cluster

    @property
    def most_terms(self) -> int:
        """Elements of a column that a thread may have; 0: any number."""
        return self.rows if self.held else 0

    @property
    def facts(self) -> dict[str, int | bool]:
        """Facts of a SKU that determine the order of additions."""
        found: dict[str, int | bool] = {"groups": self.groups, "rows": self.rows, "vector": self.vector}
        found |= {} if self.held else {"stream": True}
        return found | ({"cluster": self.cluster} if self.cluster > 1 else {})

    def constants(self, program: FoldProgram) -> dict[str, Any]:
        """Constants of the templates in columns."""
        lanes = {name: getattr(self, name) for name in ("vector", "groups", "rows", "cluster", "held")}
        lanes |= {"threads": columns.THREADS, "slots": columns.slots(self.groups), "shared": self.shared_bytes(program)}
        found = lanes | {"columns": kept_last(program), "inner": len(program.fold)}
        found |= {"fused": not self.held and self.fuses(program), "near": _is_heavy(program)}
        return found | {"segmented": True}  # templates reach a folded element by the step from one to the next

    def fuses(self, program: FoldProgram) -> bool:
        """Whether one pass over the elements joins all stages: no stage uses another, and their states fit in registers."""
        return fold_config.independent(program) and self.vector * state_words(program) <= row_numbers.STATE_WORDS

    def shared_bytes(self, program: FoldProgram) -> int:
        most = max((state_bytes(stage) for stage in program.stages), default=0)
        return columns.shared_bytes(self.groups, self.cluster, most)


def _is_heavy(program: FoldProgram) -> bool:
    """Whether one kernel takes vectors that are aligned and those that are not: with one stage, two kernels have more CTAs on
    an SM and compile in time."""
    return len(program.stages) > 1


def kept_last(program: FoldProgram) -> int:
    """How many axes behind the last folded one are kept."""
    return len(program.shape) - 1 - int(program.fold[-1])


def state_bytes(stage: Stage) -> int:
    """sizeof(State) of kernels/reduction/reducers.cuh."""
    size = ITEMSIZE[stage.value.type]
    if stage.reducer == "welford":
        return 3 * size
    if stage.reducer == "expsum":
        return 2 * size
    return 2 * max(4, size) if "index" in REDUCERS[stage.reducer].parts else max(4, size)


def state_words(program: FoldProgram) -> int:
    """Registers for the states of all stages."""
    return sum(state_bytes(stage) for stage in program.stages) // 4


def config(program: FoldProgram, target: Target) -> ColumnConfig:
    vector = fold_config.vector_of(program)
    folded = math.prod(program.shape[axis] for axis in program.fold)
    rows = _power_below(max(1, min(columns.MAX_ROWS, fold_config.elements_in_registers(program) // vector)))
    most, clusters = columns.GROUPS[-1], columns.CLUSTERS if target.sm_version >= 90 else (1,)
    for groups in columns.GROUPS:
        if folded <= groups * rows:
            return ColumnConfig(vector, groups, rows, 1, True)
    if _reads_again(program):
        for cluster in clusters:
            if folded <= most * rows * cluster:
                return ColumnConfig(vector, most, rows, cluster, True)
    cluster = next(one for one in reversed(clusters) if one == 1 or folded >= most * columns.ROWS_OF_A_THREAD * one)
    return ColumnConfig(vector, most, rows, cluster, False)


def _reads_again(program: FoldProgram) -> bool:
    """Whether elements are needed after a stage has joined them."""
    return len(program.stages) > 1 or any(set(program.fold) <= set(program.axes_of(made)) for made in program.outputs)


def _power_below(n: int) -> int:
    """The largest power of two that is not more."""
    return 1 << (n.bit_length() - 1)
