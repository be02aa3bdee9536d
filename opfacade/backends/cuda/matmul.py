"""Products of matrices on CUDA: tiles of wgmma for sm_90a whose sums have one order of k."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from opfacade.backends.cuda import matmul_grouped, matmul_source, ptxas, support
from opfacade.backends.cuda.declared import REPEATS, CudaKernel, writes_nothing
from opfacade.backends.cuda.matmul_segments import Segments, segments_of
from opfacade.backends.cuda.matmul_tiles import Sizes, Tile, tile_of
from opfacade.core.candidate import Candidate, Launcher, Reason
from opfacade.core.descriptor import cached_by_specialization
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans.matmul import MatmulDescriptor
from opfacade.programs.guarantees import error_model

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

ARCH = "sm_90a"
_HALVES, _FP8, _INTEGERS = ("f16", "bf16"), ("f8_e4m3", "f8_e5m2"), ("i8",)
_SUMS = {
    # Tensor cores truncate once every 16 products.
    "matmul-mma16": {"u_acc": 2.0**-23, "k_step": 16.0},
    # Sums are exact, and become f32 once.
    "matmul-s32": {"convert": 2.0**-24},
    # They cut 32 products and the sum before, each once, at 13 bits below the largest, and their sum again; f32 adds chains.
    "matmul-mma8": {"u_acc": 2.0**-24, "k_step": 32.0, "u_step": 34 * 2.0**-13, "chain": 128.0},
}
_IN_ANY_BATCH = {
    "matmul-mma16": "tests/families/matmul/test_matmul_kernel.py::test_a_row_has_its_bits_in_any_batch",
    "matmul-mma8": "tests/families/matmul/test_fp8_kernel.py::test_a_row_has_its_bits_in_any_batch",
    "matmul-s32": "tests/families/matmul/test_integer_kernel.py::test_sums_are_exact",
}
_EVIDENCE = ("tests/families/matmul/test_matmul_gpu.py::test_a_row_has_its_bits_among_any_rows_on_a_gpu", *REPEATS)


def _guarantee(problem: MatmulDescriptor, target: Target, segments: Segments | None) -> PrecisionGuarantee:
    """Sums in the order of k, whatever the tile, in segments by n and k alone: the bits of a row depend on no other row."""
    program = error_model(problem.program().values(), matmul_source.math_of(problem), "matmul", target.sm_version)
    model = "matmul-mma16" if problem.dtype in _HALVES else "matmul-mma8" if problem.dtype in _FP8 else "matmul-s32"
    constants = {"u": 2.0**-24} | dict(program.constants) | _SUMS[model]
    constants |= {"segment": float(segments.length)} if segments is not None else {}
    return PrecisionGuarantee(
        math_precision=problem.dtype,
        accumulator="i32" if problem.dtype in _INTEGERS else "f32",
        deterministic=True,
        bit_stable_on_same_hardware=True,
        batch_invariant="composition",
        error_model=ErrorModel(id=model, constants=tuple(sorted(constants.items()))),
        evidence=(_IN_ANY_BATCH[model], *_EVIDENCE),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TileKernel(CudaKernel[MatmulDescriptor]):
    """The kernel of one tile."""

    tile: Tile
    segments: Segments | None

    def facts(self, descriptor: MatmulDescriptor) -> support.SpecPairs:
        return support.pairs(**matmul_source.facts(descriptor), **matmul_source.shape_of(self.tile, self.segments))

    def jit_spec(self, descriptor: MatmulDescriptor, target: Target) -> JitSpec:
        shape = matmul_source.printed_shape(self.tile, self.segments)
        return support.spec_of("matmul/matmul", support.pairs(**matmul_source.printed(descriptor), **shape), target)


@lru_cache(maxsize=1024)
def _kernel(tile: Tile, segments: Segments | None) -> tuple[_TileKernel, Callable[[MatmulDescriptor, Target], KernelSku]]:
    """A kernel, and its SKU by specialization."""
    made = _TileKernel(
        descriptor=MatmulDescriptor,
        template="matmul/matmul",
        impl="wgmma_tile",
        constants=matmul_source.facts,
        dtypes=matmul_source.dtypes,
        guarantee=partial(_guarantee, segments=segments),
        scalars=matmul_source.scalars,
        is_empty=writes_nothing,
        tile=tile,
        segments=segments,
    )
    return made, cached_by_specialization(made.sku)


def _of(problem: MatmulDescriptor, target: Target) -> tuple[_TileKernel, Callable[[MatmulDescriptor, Target], KernelSku]]:
    sms = min(target.sm_count, problem.sm_limit or target.sm_count)
    least = 64 if problem.weight_layout == "kn" else 32
    size, segments = ITEMSIZE[problem.dtype], segments_of(problem)
    sizes = Sizes(problem.total_num_rows, problem.n * problem.columns, problem.k, problem.batch, least, size)
    sizes = sizes._replace(segments=1 if segments is None else segments.many, parts=problem.dtype in _FP8)
    return _kernel(tile_of(sizes, sms), segments)


def _lacks(problem: MatmulDescriptor, target: Target) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,))
    yield from support.choice_reason("OPF-S002", "dtype", problem.dtype, (*_HALVES, *_FP8, *_INTEGERS))
    if problem.dtype not in _HALVES:
        yield from _lacks_of_bytes(problem)


def _lacks_of_bytes(problem: MatmulDescriptor) -> Iterator[Reason]:
    """Tensor cores transpose no 8-bit operand, and scale nothing; a chain of k-steps has one scale."""
    for field, only in (("x_layout", "mk"), ("weight_layout", "nk")):
        yield from support.choice_reason("OPF-S003", field, getattr(problem, field), (only,))
    scaling = problem.scaling
    if scaling is not None:
        yield from support.choice_reason("OPF-S003", "scaling.kind", scaling.kind, ("tensor", "token", "block"))
        inside = scaling.block_offset[1] % matmul_source.STEP
        yield from support.choice_reason("OPF-S003", f"scaling.block_offset[1] % {matmul_source.STEP}", inside, (0,))


@cached_by_specialization
def _unfit(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks(problem, target))


def _declines(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return _unfit(problem, target) or ptxas.reasons()


def _sku(problem: MatmulDescriptor, target: Target) -> KernelSku:
    found: KernelSku = _of(problem, target)[1](problem, target)
    return found


def _spec(problem: MatmulDescriptor, target: Target) -> JitSpec:
    return _of(problem, target)[0].jit_spec(problem, target)


def _launcher(problem: MatmulDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    return _of(problem, target)[0].launcher(problem, target, sku, allow_build)


CANDIDATES = (
    Candidate("cuda", "wgmma_tile", MatmulDescriptor, _declines, _sku, lambda problem, target: 0, _launcher, _spec),
    matmul_grouped.CANDIDATE,
)
