"""Copies of operands that TMA cannot load, because their lines are not multiples of 16 bytes. The copies are in the workspace;
without a workspace, threads copy such operands for every tile."""

from __future__ import annotations

from opfacade.core.candidate import WORKSPACE_ALIGNMENT
from opfacade.core.dtypes import ITEMSIZE
from opfacade.plans.matmul import GroupedMatmulDescriptor, MatmulDescriptor

_CHUNK = 16  # bytes
_MEMORY = 2900.0  # bytes per ns
# Times in ns of an empty copy, of each warp that copies chunks of lines, and of threads that copy the first step; measured on
# an H200.
_LAUNCH, _WARP, FIRST = 1800.0, 0.7, 2000.0
_PART = 128  # chunks of a line per warp
# Bytes per ns that threads of a CTA copy: if k is contiguous (measured on an H100), and if it is not (estimated).
_LINES, _ACROSS = 4.2, 2.0


def copies_of(problem: MatmulDescriptor) -> int:
    """Bytes of the copies of both operands, x before the weight, in the layout of csrc/matmul/repack.h."""
    columns = problem.n * problem.columns
    x = _copy(problem, problem.x_layout == "km", problem.total_num_rows)
    return x + _copy(problem, problem.weight_layout == "kn", columns)


def _copy(problem: MatmulDescriptor, across: bool, rows: int) -> int:
    """across: whether the rows of the operand are contiguous along its lines."""
    length, lines = (rows, problem.k) if across else (problem.k, rows)
    own = length * ITEMSIZE[problem.dtype]
    if own % _CHUNK == 0:
        return 0
    needed = problem.batch * lines * -(-own // _CHUNK) * _CHUNK
    return -(-needed // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


def rate_of(problem: MatmulDescriptor) -> float:
    """The rate at which threads copy both operands, in bytes per ns."""
    return _LINES if (problem.x_layout, problem.weight_layout) == ("mk", "nk") else _ACROSS


def pays(problem: MatmulDescriptor, with_tma: float, by_threads: float) -> bool:
    """Whether copies, each read and written once, and their product by TMA are faster than threads that copy for each tile.
    Times of both products are in ns."""
    return copies_of(problem) > 0 and with_tma + time_of(problem) < by_threads + FIRST


def time_of(problem: MatmulDescriptor) -> float:
    """The time of the copies in ns."""
    return _LAUNCH + max(2 * copies_of(problem) / _MEMORY, _WARP * _warps(problem))


def _warps(problem: MatmulDescriptor) -> float:
    """Number of warps that copy both operands; several short lines share one warp."""
    columns = problem.n * problem.columns
    operands = ((problem.x_layout == "km", problem.total_num_rows), (problem.weight_layout == "kn", columns))
    found = 0.0
    for across, rows in operands:
        length, lines = (rows, problem.k) if across else (problem.k, rows)
        chunks = -(-length * ITEMSIZE[problem.dtype] // _CHUNK)
        found += problem.batch * lines * (-(-chunks // _PART) if chunks > 16 else chunks / 32)
    return found


def bytes_of(problem: MatmulDescriptor | GroupedMatmulDescriptor, repack: bool) -> int:
    """Bytes of the workspace of a product."""
    return copies_of(problem) if repack and isinstance(problem, MatmulDescriptor) else 0
