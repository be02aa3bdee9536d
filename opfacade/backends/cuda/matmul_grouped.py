"""Products of groups of rows on CUDA: the tiles of one product, whose rows a group has on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from opfacade.backends.cuda import matmul_source, ptxas, support
from opfacade.backends.cuda.declared import REPEATS, CudaKernel, writes_nothing
from opfacade.backends.cuda.matmul_segments import Segments, segments_of
from opfacade.backends.cuda.matmul_tiles import Sizes, Tile, whole_tile_of
from opfacade.core.candidate import Candidate, Launcher, Reason
from opfacade.core.descriptor import cached_by_specialization
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans.matmul import GroupedMatmulDescriptor
from opfacade.programs.guarantees import error_model

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

ARCH = "sm_90a"
_HALVES = ("f16", "bf16")
_MOST_GROUPS = 4096  # whose numbers of tiles lie in shared memory beside the stages
_SUMS = {"u_acc": 2.0**-23, "k_step": 16.0}  # tensor cores truncate once every 16 products
_EVIDENCE = (
    "tests/families/matmul/test_grouped_kernel.py::test_a_row_has_its_bits_in_any_group",
    "tests/families/matmul/test_matmul_gpu.py::test_a_row_has_its_bits_among_any_groups_on_a_gpu",
    *REPEATS,
)


def _guarantee(problem: GroupedMatmulDescriptor, target: Target, segments: Segments | None) -> PrecisionGuarantee:
    """Sums are those of a product of the same n and k, in its order: a row has the bits that it has there."""
    program = error_model(problem.program().values(), matmul_source.math_of(problem), "matmul", target.sm_version)
    constants = {"u": 2.0**-24} | dict(program.constants) | _SUMS
    constants |= {"segment": float(segments.length)} if segments is not None else {}
    return PrecisionGuarantee(
        math_precision=problem.dtype,
        accumulator="f32",
        deterministic=True,
        bit_stable_on_same_hardware=True,
        batch_invariant="composition",
        error_model=ErrorModel(id="matmul-mma16", constants=tuple(sorted(constants.items()))),
        evidence=_EVIDENCE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupedKernel(CudaKernel[GroupedMatmulDescriptor]):
    """The kernel of one tile."""

    tile: Tile
    segments: Segments | None

    def facts(self, descriptor: GroupedMatmulDescriptor) -> support.SpecPairs:
        return support.pairs(**matmul_source.facts(descriptor), **matmul_source.shape_of(self.tile, self.segments))

    def jit_spec(self, descriptor: GroupedMatmulDescriptor, target: Target) -> JitSpec:
        shape = matmul_source.printed_shape(self.tile, self.segments)
        return support.spec_of("matmul/grouped_matmul", support.pairs(**matmul_source.printed(descriptor), **shape), target)


@lru_cache(maxsize=1024)
def _kernel(
    tile: Tile, segments: Segments | None
) -> tuple[_GroupedKernel, Callable[[GroupedMatmulDescriptor, Target], KernelSku]]:
    """A kernel, and its SKU by specialization."""
    made = _GroupedKernel(
        descriptor=GroupedMatmulDescriptor,
        template="matmul/grouped_matmul",
        impl="wgmma_groups",
        constants=matmul_source.facts,
        dtypes=matmul_source.dtypes,
        guarantee=partial(_guarantee, segments=segments),
        scalars=matmul_source.scalars,
        is_empty=writes_nothing,
        tile=tile,
        segments=segments,
    )
    return made, cached_by_specialization(made.sku)


def _of(
    problem: GroupedMatmulDescriptor, target: Target
) -> tuple[_GroupedKernel, Callable[[GroupedMatmulDescriptor, Target], KernelSku]]:
    """The tile for groups of equal size: the real ones are on the device."""
    sms = min(target.sm_count, problem.sm_limit or target.sm_count)
    least = 64 if problem.weight_layout == "kn" else 32
    rows = problem.total_num_rows if problem.layout == "masked" else -(-problem.total_num_rows // problem.groups)
    segments = segments_of(problem)
    sizes = Sizes(rows, problem.n * problem.columns, problem.k, problem.groups, least, ITEMSIZE[problem.dtype])
    sizes = sizes._replace(segments=1 if segments is None else segments.many)
    return _kernel(whole_tile_of(sizes, sms, problem.gather), segments)


def _lacks(problem: GroupedMatmulDescriptor, target: Target) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,))
    yield from support.choice_reason("OPF-S002", "dtype", problem.dtype, _HALVES)
    yield from support.choice_reason("OPF-S003", "layout", problem.layout, ("ragged", "masked"))
    yield from support.choice_reason("OPF-S003", "zero_tail", problem.zero_tail, (False,))


@cached_by_specialization
def _unfit(problem: GroupedMatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks(problem, target))


def _declines(problem: GroupedMatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    many = support.limit_reason("OPF-S004", "groups", problem.groups, _MOST_GROUPS)
    return _unfit(problem, target) or tuple(many) or ptxas.reasons()


def _sku(problem: GroupedMatmulDescriptor, target: Target) -> KernelSku:
    found: KernelSku = _of(problem, target)[1](problem, target)
    return found


def _spec(problem: GroupedMatmulDescriptor, target: Target) -> JitSpec:
    return _of(problem, target)[0].jit_spec(problem, target)


def _launcher(problem: GroupedMatmulDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    return _of(problem, target)[0].launcher(problem, target, sku, allow_build)


CANDIDATE = Candidate(
    "cuda", "wgmma_groups", GroupedMatmulDescriptor, _declines, _sku, lambda problem, target: 0, _launcher, _spec
)
