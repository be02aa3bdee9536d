"""Products of at most eight rows of 16-bit types on sm_90a: the order of k and the bits of the tiles for many rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from opfacade.backends.cuda import matmul_source, support
from opfacade.backends.cuda.declared import CudaKernel, writes_nothing
from opfacade.backends.cuda.matmul_kernel import ARCH, HALVES, promise
from opfacade.backends.cuda.matmul_segments import segments_of
from opfacade.core.candidate import Candidate, Reason
from opfacade.core.descriptor import cached_by_specialization
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans.matmul import MatmulDescriptor

if TYPE_CHECKING:
    from opfacade.core.guarantee import PrecisionGuarantee
    from opfacade.jit.spec import JitSpec

MOST_ROWS = 8
_WARPS = 2
_EVIDENCE = (
    "tests/families/matmul/test_gemv_kernel.py::test_few_rows_have_the_bits_of_many",
    "tests/families/matmul/test_gemv_gpu.py::test_few_rows_have_the_bits_of_many_on_a_gpu",
)


def _lacks(problem: MatmulDescriptor, target: Target) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,))
    yield from support.choice_reason("OPF-S002", "dtype", problem.dtype, HALVES)
    for field, only in (("x_layout", "mk"), ("weight_layout", "nk"), ("weight_format", None), ("sm_limit", None)):
        yield from support.choice_reason("OPF-S003", field, getattr(problem, field), (only,))


@cached_by_specialization
def _unfit(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks(problem, target))


def _declines(problem: MatmulDescriptor, target: Target) -> Sequence[Reason]:
    return (*_unfit(problem, target), *support.limit_reason("OPF-S003", "total_num_rows", problem.total_num_rows, MOST_ROWS))


def warps_of(problem: MatmulDescriptor) -> int:
    """Warps of a CTA, each with eight columns."""
    return _WARPS


def _facts(problem: MatmulDescriptor) -> dict[str, bool | int | str]:
    segments = segments_of(problem)
    own: dict[str, bool | int | str] = {"warps": warps_of(problem)} if segments is None else {"segment": segments.length}
    return {**matmul_source.facts(problem), **own}


def _scalars(problem: MatmulDescriptor) -> tuple[bool | int | str | float, ...]:
    return matmul_source.scalars(problem, segments_of(problem))


def _guarantee(problem: MatmulDescriptor, target: Target) -> PrecisionGuarantee:
    return promise(problem, target, segments_of(problem), _EVIDENCE)


class _GemvKernel(CudaKernel[MatmulDescriptor]):
    """The template is printed with the program, besides the facts of the SKU."""

    def jit_spec(self, descriptor: MatmulDescriptor, target: Target) -> JitSpec:
        printed = matmul_source.printed(descriptor) | {"segmented": segments_of(descriptor) is not None}
        printed |= {"warps": warps_of(descriptor)}
        return support.spec_of("matmul/gemv", support.pairs(**printed), target)


_KERNEL = _GemvKernel(
    descriptor=MatmulDescriptor,
    template="matmul/gemv",
    impl="gemv",
    constants=_facts,
    dtypes=matmul_source.dtypes,
    guarantee=_guarantee,
    scalars=_scalars,
    is_empty=writes_nothing,
)


def _sku(problem: MatmulDescriptor, target: Target) -> KernelSku:
    """Segments follow n and k, which are sizes: no cache by specialization."""
    return _KERNEL.sku(problem, target)


CANDIDATE = Candidate(
    "cuda",
    "gemv",
    MatmulDescriptor,
    declines=_declines,
    sku=_sku,
    workspace=lambda problem, target: 0,
    launcher=_KERNEL.launcher,
    jit_spec=_KERNEL.jit_spec,
)
