"""Products of groups of rows on CUDA: the tiles of one product per group, whose rows are read on the device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

from opfacade.backends.cuda import ptxas, support
from opfacade.backends.cuda.matmul.kernel import ARCH, FP8, HALVES, INTEGERS, Form, Shape, candidate, lacks_of_bytes
from opfacade.backends.cuda.matmul.segments import Segments, segments_of
from opfacade.backends.cuda.matmul.source import has_factors
from opfacade.backends.cuda.matmul.tiles import Sizes, Tile, fastest, swapped_tile_of, whole_tile_of, whole_works
from opfacade.core.answer_cache import cached_by
from opfacade.core.any_size import at_any_size
from opfacade.core.candidate import Reason
from opfacade.core.descriptor import memoize_last
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.target import Target
from opfacade.plans._composites.rows_alone import with_rows
from opfacade.plans.matmul import GroupedMatmulDescriptor

_MOST_GROUPS = 4096  # limit, because the tile counts of all groups are in shared memory with the stages
_FEW_ROWS = 8  # maximum mean rows per group for rows on N; with more, or in fp8, rows on M are as fast or faster
# A row has the same bits as in a single product with the same n and k.
_FORM = Form(
    descriptor=GroupedMatmulDescriptor,
    template="matmul/grouped_matmul",
    impl="wgmma_groups",
    in_any_batch=dict.fromkeys(
        ("matmul-mma16", "matmul-mma8", "matmul-s32"),
        "tests/families/matmul/test_grouped_kernel.py::test_a_row_has_its_bits_in_any_group",
    ),
    on_a_gpu="tests/families/matmul/test_matmul_gpu.py::test_a_row_has_its_bits_among_any_groups_on_a_gpu",
)


class _AnyRows(NamedTuple):
    """All that the tile depends on except rows and the number of groups that have some. rest: as `Sizes` has them."""

    columns: int
    rest: tuple[int, int, int, bool]
    segments: Segments | None
    factors: bool
    few: int  # so many rows of a group are few


def _of_columns(problem: GroupedMatmulDescriptor) -> Hashable:
    return problem.specialization, problem.n, problem.k


def _make_any_rows(problem: GroupedMatmulDescriptor) -> _AnyRows:
    segments = segments_of(problem)
    least, size = 64 if problem.weight_layout == "kn" else 32, ITEMSIZE[problem.dtype]
    rest = (least, size, 1 if segments is None else segments.many, problem.dtype in FP8)
    few = _FEW_ROWS if problem.dtype in HALVES else 0
    return _AnyRows(problem.n * problem.columns, rest, segments, has_factors(problem), few)


_any_rows = cached_by(_of_columns, _make_any_rows)


@memoize_last
def _shape(problem: GroupedMatmulDescriptor, target: Target) -> Shape:
    """The tile for the maximum number of non-empty groups, all of equal size, because the real sizes are on the device."""
    known = _any_rows(problem)
    return Shape(_tile_of(problem, known, target, rows_of(problem)), known.segments, factors=known.factors)


def _tile_of(problem: GroupedMatmulDescriptor, known: _AnyRows, target: Target, filled: tuple[int, int]) -> Tile:
    """filled: as `rows_of` has it."""
    sms = min(target.sm_count, problem.sm_limit or target.sm_count)
    sizes = Sizes(filled[0], known.columns, problem.k, filled[1], *known.rest)
    return swapped_tile_of(sizes, sms) if filled[0] <= known.few else whole_tile_of(sizes, sms, problem.gather)


def rows_of(problem: GroupedMatmulDescriptor) -> tuple[int, int]:
    """Mean rows per non-empty group, and the maximum number of such groups."""
    if problem.layout == "masked":
        return problem.total_num_rows, problem.groups
    drawn = max(1, min(problem.groups, problem.total_num_rows))
    return -(-problem.total_num_rows // drawn), drawn


def _by_rows(problem: GroupedMatmulDescriptor, target: Target) -> Callable[[int], Hashable] | None:
    """The tile."""
    if problem.layout == "masked":
        return None
    sms, known, groups = min(target.sm_count, problem.sm_limit or target.sm_count), _any_rows(problem), max(1, problem.groups)
    of_many = whole_works((known.columns, problem.k, groups, *known.rest), sms, problem.gather)

    def key(rows: int) -> Hashable:
        mean = -(-rows // groups)
        if rows >= groups and mean > known.few:
            return fastest(of_many, mean), ptxas.reasons()
        drawn = max(1, min(groups, rows))
        return _tile_of(problem, known, target, (-(-rows // drawn), drawn)), ptxas.reasons()

    return key


def _lacks(problem: GroupedMatmulDescriptor, target: Target) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,))
    yield from support.choice_reason("OPF-S002", "dtype", problem.dtype, (*HALVES, *FP8, *INTEGERS))
    yield from support.choice_reason("OPF-S003", "layout", problem.layout, ("ragged", "masked"))
    if problem.weight_format is not None:
        yield from support.choice_reason("OPF-S003", "weight_format", problem.weight_format.dtype, (None,))
    if problem.dtype not in HALVES:
        yield from lacks_of_bytes(problem)


@at_any_size
def _unfit(problem: GroupedMatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks(problem, target))


def _declines(problem: GroupedMatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    many = support.limit_reason("OPF-S004", "groups", problem.groups, _MOST_GROUPS)
    return _unfit(problem, target) or tuple(many) or ptxas.reasons()


CANDIDATE = with_rows(candidate(_FORM, _declines, _shape), _by_rows)
