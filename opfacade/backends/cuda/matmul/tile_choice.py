"""The inputs for the choice of a product's tile, and the time of the fastest tile."""

from __future__ import annotations

from typing import NamedTuple

from opfacade.backends.cuda.matmul import repack as matmul_repack
from opfacade.backends.cuda.matmul.kernel import FP8
from opfacade.backends.cuda.matmul.segments import Segments, segments_of
from opfacade.backends.cuda.matmul.tiles import Sizes, nanoseconds, tile_of
from opfacade.core.descriptor import memoize_last
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.target import Target
from opfacade.plans.matmul import MatmulDescriptor


class Choice(NamedTuple):
    """repack: whether operands are copied first."""

    sizes: Sizes
    sms: int
    segments: Segments | None
    repack: bool = False


@memoize_last
def choice_of(problem: MatmulDescriptor, target: Target) -> Choice:
    sms = min(target.sm_count, problem.sm_limit or target.sm_count)
    least = 64 if problem.weight_layout == "kn" else 32
    size, segments = ITEMSIZE[problem.dtype], segments_of(problem)
    many, parts = 1 if segments is None else segments.many, problem.dtype in FP8
    sizes = Sizes(problem.total_num_rows, problem.n * problem.columns, problem.k, problem.batch, least, size, many, parts)
    if problem.weight_format is not None or not matmul_repack.copies_of(problem):
        return Choice(sizes, sms, segments)
    copied = sizes._replace(copied=matmul_repack.rate_of(problem))
    times = (nanoseconds(tile_of(one, sms), one, sms) for one in (sizes, copied))
    repack = matmul_repack.pays(problem, *times)
    return Choice(sizes if repack else copied, sms, segments, repack)


def time_of(problem: MatmulDescriptor, target: Target) -> float:
    """The time of the fastest tile in ns, with the copies of operands before it, apart from what every launch takes."""
    sizes, sms, _, repack = choice_of(problem, target)
    product = nanoseconds(tile_of(sizes, sms), sizes, sms)
    return product + (matmul_repack.time_of(problem) if repack else matmul_repack.FIRST if sizes.copied else 0.0)
