"""Products of 16-bit types by mma.sync, whose operands threads copy: for small problems, and for operands that TMA cannot
load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import Fact
from opfacade.backends.cuda.matmul.kernel import ARCH, HALVES, Form, candidate
from opfacade.backends.cuda.matmul.segments import Segments, segments_of
from opfacade.core.any_size import at_any_size
from opfacade.core.candidate import Reason
from opfacade.core.target import Target
from opfacade.plans.matmul import MatmulDescriptor

_FORM = Form(
    descriptor=MatmulDescriptor,
    template="matmul/direct_matmul",
    impl="mma_direct",
    in_any_batch={"matmul-mma16": "tests/families/matmul/test_direct_kernel.py::test_a_row_has_its_bits_in_any_batch"},
    on_a_gpu="tests/families/matmul/test_direct_gpu.py::test_a_row_has_its_bits_among_any_rows_on_a_gpu",
)


class Direct(NamedTuple):
    """rows: rows of a tile. wide: blocks of eight columns per warp. beside: warps with adjacent columns. along: warps with one
    segment of k each. stages: stages of 128 elements of k."""

    rows: int
    wide: int
    beside: int
    along: int
    stages: int
    segments: Segments | None = None
    repack: bool = False
    revision: int = 1

    @property
    def columns(self) -> int:
        return 8 * self.wide * self.beside

    def facts(self) -> dict[str, Fact]:
        found: dict[str, Fact] = {"tile_rows": self.rows, "tile_columns": self.columns}
        found |= {"along": self.along} if self.along > 1 else {}
        return found | ({"segment": self.segments.length} if self.segments is not None else {})

    def printed(self) -> dict[str, Fact]:
        shape: dict[str, Fact] = {
            "tile_rows": self.rows,
            "tile_columns": self.columns,
            "wide": self.wide,
            "beside": self.beside,
        }
        return shape | {"along": self.along, "stages": self.stages, "segmented": self.segments is not None}


# Tiles whose warps have adjacent columns.
BESIDE = (
    Direct(8, 1, 2, 1, 8), Direct(8, 1, 4, 1, 6), Direct(8, 2, 4, 1, 4), Direct(16, 1, 4, 1, 6), Direct(32, 1, 4, 1, 5),
    Direct(32, 2, 4, 1, 4), Direct(64, 2, 4, 1, 3), Direct(64, 4, 4, 1, 3),
)  # fmt: skip
# Tiles whose warps have one of at most eight segments of k.
ALONG = (Direct(8, 1, 1, 8, 4), Direct(16, 1, 1, 8, 4))


def choice(problem: MatmulDescriptor, target: Target) -> Direct | None:
    """The shape of the kernel; None if tiles of wgmma are faster."""
    return None


def _shape(problem: MatmulDescriptor, target: Target) -> Direct:
    found = choice(problem, target)
    assert found is not None
    return found


def _lacks(problem: MatmulDescriptor, target: Target) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,))
    yield from support.choice_reason("OPF-S002", "dtype", problem.dtype, HALVES)
    yield from support.choice_reason("OPF-S003", "x_layout", problem.x_layout, ("mk",))
    yield from support.choice_reason("OPF-S003", "weight_layout", problem.weight_layout, ("nk",))
    if problem.weight_format is not None:
        yield from support.choice_reason("OPF-S003", "weight_format", problem.weight_format.dtype, (None,))


@at_any_size
def _unfit(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks(problem, target))


def _declines(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    unfit = _unfit(problem, target)
    if unfit:
        return unfit
    pays = choice(problem, target) is not None
    return tuple(support.choice_reason("OPF-S003", "sizes for which mma.sync is faster than wgmma", pays, (True,)))


CANDIDATE = candidate(_FORM, _declines, _shape)
