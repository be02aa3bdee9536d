"""Grouped products with a medium number of rows per group and 4-bit codes, decoded to registers: the kernel of one product,
with tiles per group. Sums have the segments of the mma.sync kernel, so that both kernels give a row the same bits."""

from __future__ import annotations

from collections.abc import Iterator

from opfacade.backends.cuda import ptxas, support
from opfacade.backends.cuda.matmul import coded as matmul_coded
from opfacade.backends.cuda.matmul import coded_mma as matmul_coded_mma
from opfacade.backends.cuda.matmul import grouped as matmul_grouped
from opfacade.backends.cuda.matmul.coded import Coded
from opfacade.backends.cuda.matmul.copied import segments_of
from opfacade.backends.cuda.matmul.decoding import way_of
from opfacade.backends.cuda.matmul.kernel import ARCH, Form, candidate
from opfacade.core.any_size import at_any_size
from opfacade.core.candidate import Reason
from opfacade.core.descriptor import memoize_last
from opfacade.core.target import Target
from opfacade.plans.matmul import GroupedMatmulDescriptor

_CODES = ("int4", "uint4", "e2m1")
_MOST_GROUPS = 1024  # the limit of the kernel for few rows
_FEW, _SOME = 16, 44  # maximum rows per group for mma.sync, and for tiles of 64 rows
_SHORT_SLOT = 32  # slot whose scales and sums do not fit in registers with 128 rows, if the producer gathers

_TEST = "tests/families/matmul/test_coded_groups.py::test_a_row_has_the_bits_of_the_kernel_of_few"
_FORM = Form(
    descriptor=GroupedMatmulDescriptor,
    template="matmul/coded_groups",
    impl="wgmma_grouped_codes",
    in_any_batch={"codes": _TEST},
    on_a_gpu="tests/families/matmul/test_coded_groups_gpu.py::test_a_row_has_the_bits_of_the_kernel_of_few_on_a_gpu",
    sums=True,
)


@memoize_last
def _shape(problem: GroupedMatmulDescriptor, target: Target) -> Coded:
    """The tile for groups of equal size, with a margin for larger groups, because the real sizes are on the device."""
    assert problem.weight_format is not None
    rows, _ = matmul_grouped.rows_of(problem)
    slot = matmul_coded.slot_of(problem.weight_format)
    sums = way_of(problem.weight_format, problem.dtype, True) == "sums"
    small = rows <= _SOME or (sums and problem.gather and slot == _SHORT_SLOT)
    return Coded(64 if small else 128, 1, 2, 1, segments_of(problem.k, problem.order), slot, sums=sums)


def pays(rows: int) -> bool:
    """Whether wgmma tiles are faster than mma.sync tiles for this number of rows per group."""
    return rows > _FEW


@at_any_size
def _unfit(problem: GroupedMatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(matmul_coded_mma.lacks_of_groups(problem, target, (ARCH,), _CODES, sums=True))


def _few(problem: GroupedMatmulDescriptor) -> Iterator[Reason]:
    """Reasons that depend on sizes, which `_unfit` must not cache."""
    yield from support.limit_reason("OPF-S004", "groups", problem.groups, _MOST_GROUPS)
    yield from matmul_coded.unfit_sizes(problem)
    paid = pays(matmul_grouped.rows_of(problem)[0])
    yield from support.choice_reason("OPF-S003", "rows enough for tiles of wgmma", paid, (True,))


def _declines(problem: GroupedMatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return _unfit(problem, target) or tuple(_few(problem)) or ptxas.reasons()


CANDIDATE = candidate(_FORM, _declines, _shape)
