"""Products of groups of rows by mma.sync: weights with 4-bit or 8-bit codes, and for GPUs before sm_90 also 16-bit types, which
are compiled and emulated, but not yet measured on such a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from opfacade.backends.cuda import support
from opfacade.backends.cuda.matmul import coded as matmul_coded
from opfacade.backends.cuda.matmul import coded_mma as matmul_coded_mma
from opfacade.backends.cuda.matmul import grouped as matmul_grouped
from opfacade.backends.cuda.matmul.copied import Copied, CopiedGroups, segments_of, shape_of
from opfacade.backends.cuda.matmul.kernel import ARCH, HALVES, Form, candidate
from opfacade.core.any_size import at_any_size
from opfacade.core.candidate import Reason
from opfacade.core.descriptor import memoize_last
from opfacade.core.target import Target
from opfacade.plans.matmul import GroupedMatmulDescriptor

BEFORE = matmul_coded_mma.ARCHS
_ARCHS = (*BEFORE, ARCH)
_CODES = ("int4", "uint4", "e2m1", "f8_e4m3")
_ROOM = 1.5  # rows of a tile relative to the mean of a group, measured with random experts on an H200
_MOST_GROUPS = 1024  # limit, because the tile counts of all groups are in shared memory with the stages

_TESTS = "tests/families/matmul/test_copied_groups.py"
_FORM = Form(
    descriptor=GroupedMatmulDescriptor,
    template="matmul/copied_groups",
    impl="mma_grouped_codes",
    in_any_batch={"codes": f"{_TESTS}::test_a_row_has_its_bits_in_any_group"},
    on_a_gpu="tests/families/matmul/test_copied_gpu.py::test_a_row_has_its_bits_in_any_group_on_a_gpu",
    sums=True,
)
_PLAIN_FORM = Form(
    descriptor=GroupedMatmulDescriptor,
    template="matmul/copied_groups",
    impl="mma_groups",
    in_any_batch={"matmul-mma16": f"{_TESTS}::test_a_row_has_its_bits_in_any_group"},
    on_a_gpu=f"{_TESTS}::test_it_keeps_its_bound_and_writes_no_row_of_no_group",
)


@memoize_last
def _shape(problem: GroupedMatmulDescriptor, target: Target) -> Copied:
    """The tile for the maximum number of non-empty groups, all of equal size, because the real sizes are on the device. Ragged
    groups with codes get a margin, because a group with two tiles decodes its weight twice."""
    mean, _ = matmul_grouped.rows_of(problem)
    segments, weight = segments_of(problem.k, problem.order), problem.weight_format
    if weight is None:
        return CopiedGroups(*shape_of(mean, segments, 0, 16))
    rows = mean if problem.layout == "masked" or problem.groups == 1 else _ROOM * mean
    if weight.packed:
        return CopiedGroups(*shape_of(rows, segments, matmul_coded.slot_of(weight), 4))
    return CopiedGroups(*shape_of(rows, segments, matmul_coded_mma.slot_of_bytes(weight, problem.dtype), 8))


def _lacks_of_plain(problem: GroupedMatmulDescriptor, target: Target) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S001", "target.arch", target.arch, BEFORE)
    yield from support.choice_reason("OPF-S002", "dtype", problem.dtype, HALVES)
    yield from support.choice_reason("OPF-S003", "layout", problem.layout, ("ragged", "masked"))
    hint = 'Store the weight as [groups, n, k], with weight_layout="nk".'
    yield from support.choice_reason("OPF-S003", "weight_layout", problem.weight_layout, ("nk",), hint)
    if problem.weight_format is not None:
        yield from support.choice_reason("OPF-S003", "weight_format", problem.weight_format.dtype, (None,))


@at_any_size
def _unfit(problem: GroupedMatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(matmul_coded_mma.lacks_of_groups(problem, target, _ARCHS, _CODES, sums=True))


@at_any_size
def _unfit_plain(problem: GroupedMatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks_of_plain(problem, target))


def _many(problem: GroupedMatmulDescriptor) -> tuple[Reason, ...]:
    return tuple(support.limit_reason("OPF-S004", "groups", problem.groups, _MOST_GROUPS))


def _declines(problem: GroupedMatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return _unfit(problem, target) or (*_many(problem), *matmul_coded_mma.unfit_sizes(problem))


def _declines_plain(problem: GroupedMatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return _unfit_plain(problem, target) or _many(problem)


CANDIDATES = (candidate(_FORM, _declines, _shape), candidate(_PLAIN_FORM, _declines_plain, _shape))
