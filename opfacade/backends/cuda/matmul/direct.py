"""Products of 16-bit types by mma.sync, whose operands threads copy: for operands that TMA cannot load, if k is short or rows
are few."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from opfacade.backends.cuda import support
from opfacade.backends.cuda.matmul import repack as matmul_repack
from opfacade.backends.cuda.matmul.direct_choice import Direct, choice
from opfacade.backends.cuda.matmul.kernel import ARCH, HALVES, Form, candidate
from opfacade.core.any_size import at_any_size
from opfacade.core.candidate import Reason
from opfacade.core.target import Target
from opfacade.plans._composites.rows_alone import with_rows
from opfacade.plans.matmul import MatmulDescriptor

_FORM = Form(
    descriptor=MatmulDescriptor,
    template="matmul/direct_matmul",
    impl="mma_direct",
    in_any_batch={"matmul-mma16": "tests/families/matmul/test_direct_kernel.py::test_a_row_has_its_bits_in_any_batch"},
    on_a_gpu="tests/families/matmul/test_direct_gpu.py::test_a_row_has_its_bits_among_any_rows_on_a_gpu",
)


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


def _by_rows(problem: MatmulDescriptor, target: Target) -> Callable[[int], Hashable] | None:
    """One answer if TMA can load the operands at any number of rows: they are refused."""
    if problem.x_layout != "mk" or matmul_repack.copies_of(problem):
        return None
    return lambda rows: False


CANDIDATE = with_rows(candidate(_FORM, _declines, _shape), _by_rows)
