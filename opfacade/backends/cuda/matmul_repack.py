"""Copies of operands that TMA cannot load, because their lines are not whole chunks of sixteen bytes: when a product has a
workspace for them. Otherwise threads copy such operands into every tile."""

from __future__ import annotations

from opfacade.backends.cuda.matmul_tiles import Sizes, Tile, nanoseconds
from opfacade.core.candidate import WORKSPACE_ALIGNMENT
from opfacade.core.dtypes import ITEMSIZE
from opfacade.plans.matmul import GroupedMatmulDescriptor, MatmulDescriptor

_CHUNK = 16  # bytes
_MEMORY = 2900.0  # bytes a nanosecond
_LAUNCH = 2500.0  # nanoseconds of a copy of nothing
_COPIED = 4.0  # bytes a nanosecond that the threads of a CTA copy into its stages


def copies_of(problem: MatmulDescriptor) -> int:
    """Bytes of the copies of both operands, x before the weight, as csrc/matmul/repack.h places them."""
    columns = problem.n * problem.columns
    x = _copy(problem, problem.x_layout == "km", problem.total_num_rows)
    return x + _copy(problem, problem.weight_layout == "kn", columns)


def _copy(problem: MatmulDescriptor, across: bool, rows: int) -> int:
    """across: the rows of the operand lie along its lines."""
    length, lines = (rows, problem.k) if across else (problem.k, rows)
    own = length * ITEMSIZE[problem.dtype]
    if own % _CHUNK == 0:
        return 0
    needed = problem.batch * lines * -(-own // _CHUNK) * _CHUNK
    return -(-needed // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


def pays(problem: MatmulDescriptor, tile: Tile, sizes: Sizes, sms: int) -> bool:
    """Whether the product and copies, each read and written once, take less time than threads that copy for every tile."""
    copied = copies_of(problem)
    if not copied:
        return False
    mapped = nanoseconds(tile, sizes, sms)
    return mapped + _LAUNCH + 2 * copied / _MEMORY < max(mapped, _by_threads(tile, sizes, sms))


def _by_threads(tile: Tile, sizes: Sizes, sms: int) -> float:
    """Time of the last CTA."""
    down, across = -(-sizes.rows // (tile.rows * tile.cluster)), -(-sizes.columns // tile.columns)
    rounds = max(1, -(-down * across * sizes.batch // max(1, sms // (tile.cluster * tile.split))))
    lines = min(tile.rows, sizes.rows) + min(tile.columns, sizes.columns)
    return rounds * lines * sizes.k * sizes.size / tile.split / _COPIED


def bytes_of(problem: MatmulDescriptor | GroupedMatmulDescriptor, repack: bool) -> int:
    """The workspace of a product."""
    return copies_of(problem) if repack and isinstance(problem, MatmulDescriptor) else 0
