"""Matrix products on CUDA: wgmma tiles for sm_90a, which all add in the same order of k."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace

from opfacade.backends.cuda import ptxas, support
from opfacade.backends.cuda.matmul import (
    coded as matmul_coded,
)
from opfacade.backends.cuda.matmul import (
    coded_groups as matmul_coded_groups,
)
from opfacade.backends.cuda.matmul import (
    coded_mma as matmul_coded_mma,
)
from opfacade.backends.cuda.matmul import (
    codes as matmul_codes,
)
from opfacade.backends.cuda.matmul import (
    decoded as matmul_decoded,
)
from opfacade.backends.cuda.matmul import (
    decoded_chain as matmul_decoded_chain,
)
from opfacade.backends.cuda.matmul import (
    decoded_groups as matmul_decoded_groups,
)
from opfacade.backends.cuda.matmul import (
    direct as matmul_direct,
)
from opfacade.backends.cuda.matmul import (
    grouped as matmul_grouped,
)
from opfacade.backends.cuda.matmul import (
    grouped_mma as matmul_grouped_mma,
)
from opfacade.backends.cuda.matmul import (
    ranges as matmul_ranges,
)
from opfacade.backends.cuda.matmul import (
    repack as matmul_repack,
)
from opfacade.backends.cuda.matmul.decoding import terms
from opfacade.backends.cuda.matmul.kernel import ARCH, FP8, HALVES, INTEGERS, Form, Shape, candidate, lacks_of_bytes
from opfacade.backends.cuda.matmul.source import has_factors
from opfacade.backends.cuda.matmul.tile_choice import choice_of
from opfacade.backends.cuda.matmul.tiles import fastest, tile_of, tiles_by_time, works_of
from opfacade.core.any_size import at_any_size
from opfacade.core.candidate import Candidate, Reason
from opfacade.core.descriptor import memoize_last
from opfacade.core.target import Target
from opfacade.plans._composites.rows_alone import with_rows
from opfacade.plans.matmul import MatmulDescriptor

_TUNED = 4  # number of tiles that `tune` measures

_FORM = Form(
    descriptor=MatmulDescriptor,
    template="matmul/matmul",
    impl="wgmma_tile",
    in_any_batch={
        "matmul-mma16": "tests/families/matmul/test_matmul_kernel.py::test_a_row_has_its_bits_in_any_batch",
        "codes": "tests/families/matmul/test_codes_kernel.py::test_a_row_has_its_bits_in_any_batch",
        "matmul-mma8": "tests/families/matmul/test_fp8_kernel.py::test_a_row_has_its_bits_in_any_batch",
        "matmul-s32": "tests/families/matmul/test_integer_kernel.py::test_sums_are_exact",
    },
    on_a_gpu="tests/families/matmul/test_matmul_gpu.py::test_a_row_has_its_bits_among_any_rows_on_a_gpu",
)


@memoize_last
def _shape(problem: MatmulDescriptor, target: Target) -> Shape:
    found = choice_of(problem, target)
    if problem.weight_format is not None:
        return matmul_codes.shape_of(found.sizes, found.sms, terms(problem.weight_format, problem.dtype))
    return Shape(tile_of(found.sizes, found.sms), found.segments, found.repack, factors=has_factors(problem))


def _next_shape(problem: MatmulDescriptor, target: Target, place: int) -> Shape | None:
    """The shape with the tile at index `place` in the order of time, 0 being the fastest; None if there are fewer tiles."""
    if problem.weight_format is not None:
        return None
    found = choice_of(problem, target)
    tiles = tiles_by_time(found.sizes, found.sms)
    if place >= len(tiles):
        return None
    return Shape(tiles[place], found.segments, found.repack, factors=has_factors(problem))


def _lacks(problem: MatmulDescriptor, target: Target) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,))
    yield from support.choice_reason("OPF-S002", "dtype", problem.dtype, (*HALVES, *FP8, *INTEGERS))
    if problem.weight_format is not None:
        yield from matmul_codes.lacks(problem, problem.weight_format, ordered=True)
    elif problem.dtype not in HALVES:
        yield from lacks_of_bytes(problem)


@at_any_size
def _unfit(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks(problem, target))


def _declines(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return _unfit(problem, target) or ptxas.reasons()


def _by_rows(problem: MatmulDescriptor, target: Target) -> Callable[[int], Hashable] | None:
    """The tile, if rows change neither copies of operands nor codes."""
    if problem.weight_format is not None or problem.x_layout != "mk" or matmul_repack.copies_of(problem):
        return None
    found = choice_of(problem, target)
    if found.segments is not None:
        return lambda rows: (tile_of(found.sizes._replace(rows=rows), found.sms), ptxas.reasons())
    works = works_of(found.sizes, found.sms)
    return lambda rows: (fastest(works, rows), ptxas.reasons())


def _config(place: int) -> Candidate:
    """A config for another tile, which `tune` measures: another SKU with the same bits."""
    name = f"tile_{place + 1}"

    def declines(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
        unfit = _unfit(problem, target)
        if unfit:
            return unfit
        if _next_shape(problem, target, place) is None:
            return (Reason("OPF-S017", "config", name, "a product that has as many tiles"),)
        return ptxas.reasons()

    def shape(problem: MatmulDescriptor, target: Target) -> Shape:
        found = _next_shape(problem, target, place)
        assert found is not None
        return found

    return replace(candidate(_FORM, declines, shape), config=name)


CANDIDATES = (
    matmul_decoded.CANDIDATE,
    matmul_coded.CANDIDATE,
    matmul_coded_mma.CANDIDATE,
    matmul_coded_mma.BYTES,
    matmul_direct.CANDIDATE,
    matmul_decoded_chain.CANDIDATE,
    with_rows(candidate(_FORM, _declines, _shape), _by_rows),
    matmul_grouped.CANDIDATE,
    matmul_decoded_groups.CANDIDATE,
    matmul_coded_groups.CANDIDATE,
    *matmul_grouped_mma.CANDIDATES,
    matmul_ranges.CANDIDATE,
    *(_config(place) for place in range(1, _TUNED)),
)
