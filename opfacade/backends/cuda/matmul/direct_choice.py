"""The tile of a product by mma.sync, and whether it is faster than tiles of wgmma. Neither changes bits, so both may depend on
the number of rows."""

from __future__ import annotations

from typing import NamedTuple

from opfacade.backends.cuda.declared import Fact
from opfacade.backends.cuda.matmul import repack as matmul_repack
from opfacade.backends.cuda.matmul.segments import Segments
from opfacade.backends.cuda.matmul.tile_choice import choice_of, time_of
from opfacade.core.descriptor import memoize_last
from opfacade.core.target import Target
from opfacade.plans.matmul import MatmulDescriptor

_STEP, _PITCH = 128, 272  # elements of k per stage, and bytes per line of a stage (kernels/matmul/direct/shape.h)
_SHARED, _THREADS = 227 * 1024, 2048  # per SM
_FEW = 64  # maximum rows of tiles whose warps have a segment each
_MEMORY = 2484.0  # bytes per ns


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


class _Rate(NamedTuple):
    """once: ns per product. cta: ns per CTA of an SM. alone: ns per stage of a wave of CTAs. busy: ns per stage and CTA of an
    SM."""

    once: float
    cta: float
    alone: float
    busy: float


# Tiles whose warps have adjacent columns.
BESIDE = (
    Direct(8, 1, 4, 1, 6), Direct(8, 2, 4, 1, 4), Direct(16, 1, 4, 1, 6), Direct(16, 2, 4, 1, 4), Direct(32, 1, 4, 1, 5),
    Direct(32, 2, 4, 1, 4), Direct(64, 2, 4, 1, 3),
)  # fmt: skip
_SQUARE = Direct(32, 2, 4, 1, 4)  # also for more rows
# Tiles whose warps have one of at most eight segments of k.
ALONG = (Direct(8, 1, 1, 8, 4), Direct(16, 1, 1, 8, 4))
# Fitted to times on an H200: (rows, columns) of a tile -> rates if k is even, and if it is odd.
_RATES = {
    (8, 32): (_Rate(70, 760, 620, 320), _Rate(70, 760, 700, 470)),
    (8, 64): (_Rate(0, 870, 710, 510), _Rate(0, 870, 870, 520)),
    (16, 32): (_Rate(270, 970, 640, 450), _Rate(270, 970, 850, 660)),
    (16, 64): (_Rate(710, 870, 690, 510), _Rate(710, 870, 990, 510)),
    (32, 32): (_Rate(270, 970, 860, 500), _Rate(270, 970, 1400, 800)),
    (32, 64): (_Rate(0, 1720, 970, 940), _Rate(0, 1720, 1460, 1460)),
    (64, 64): (_Rate(0, 1620, 1340, 1310), _Rate(0, 1620, 2120, 2120)),
    (8, 8): (_Rate(2300, 2400, 450, 370), _Rate(2300, 2400, 750, 450)),
    (16, 8): (_Rate(0, 0, 1500, 1500), _Rate(0, 0, 1500, 1500)),
}


@memoize_last
def choice(problem: MatmulDescriptor, target: Target) -> Direct | None:
    """The fastest tile; None if tiles of wgmma are faster, as they are if TMA can load both operands."""
    if not matmul_repack.copies_of(problem):
        return None
    found, sms, segments, _ = choice_of(problem, target)
    best, least = None, time_of(problem, target)
    for shape in _fitting(problem.total_num_rows, segments):
        time = nanoseconds(shape, (found.rows, found.columns, found.k, found.batch), sms)
        if time < least:
            best, least = shape, time
    return best


def _fitting(rows: int, segments: Segments | None) -> list[Direct]:
    """Tiles that are not mostly empty."""
    height = next((one for one in (8, 16, 32) if rows <= one), 64)
    fit = [one for one in BESIDE if one.rows == height or (one == _SQUARE and height == 64)]
    found = [one._replace(segments=segments) for one in fit]
    if segments is not None and rows <= _FEW:
        found.append(ALONG[height > 8]._replace(segments=segments))
    return found


def nanoseconds(shape: Direct, sizes: tuple[int, int, int, int], sms: int) -> float:
    """The time in ns, apart from what every launch takes. sizes: rows, columns, k and batch."""
    rows, columns, k, batch = sizes
    length = k if shape.along == 1 or shape.segments is None else shape.segments.length
    stages = max(1, -(-length // _STEP))
    shared = shape.along * min(shape.stages, stages) * (shape.rows + shape.columns) * _PITCH
    resident = max(1, min(_SHARED // (shared + 1024), _THREADS // (64 * shape.beside * shape.along)))
    each = -(-(-(-rows // shape.rows) * -(-columns // shape.columns) * batch) // sms)  # CTAs per SM
    waves, rate = -(-each // resident), _RATES[shape.rows, shape.columns][k % 2]
    time = rate.once + each * rate.cta + stages * max(waves * rate.alone, each * rate.busy)
    return max(time, 2 * (rows + columns) * k * batch / _MEMORY)
