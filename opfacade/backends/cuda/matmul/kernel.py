"""The common part of product kernels: the guarantee, one kernel per tile, and the candidate that chooses the tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import REPEATS, CudaKernel, Fact, plain, writes_nothing
from opfacade.backends.cuda.matmul import repack as matmul_repack
from opfacade.backends.cuda.matmul import source as matmul_source
from opfacade.backends.cuda.matmul.decoding import terms, way_of
from opfacade.backends.cuda.matmul.segments import Segments
from opfacade.backends.cuda.matmul.source import Product
from opfacade.backends.cuda.matmul.tiles import Tile
from opfacade.core.candidate import Candidate, Launcher, Reason
from opfacade.core.descriptor import cached_by_specialization
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans.matmul import GroupedMatmulDescriptor, MatmulDescriptor
from opfacade.programs.guarantees import error_model

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

P = TypeVar("P", bound=Product)
ARCH = "sm_90a"
HALVES, FP8, INTEGERS = ("f16", "bf16"), ("f8_e4m3", "f8_e5m2"), ("i8",)
_SUMS = {
    # Tensor cores truncate once every 16 products.
    "matmul-mma16": {"u_acc": 2.0**-23, "k_step": 16.0},
    # Sums are exact, and become f32 once.
    "matmul-s32": {"convert": 2.0**-24},
    # Each step truncates 32 products and the previous sum, and then their sum, at 13 bits below the largest; chains are added
    # in f32.
    "matmul-mma8": {"u_acc": 2.0**-24, "k_step": 32.0, "u_step": 34 * 2.0**-13, "chain": 128.0},
}


_K_STEP_BEFORE = 8.0  # products between two truncations on GPUs before sm_90


def lacks_of_bytes(problem: Product) -> Iterator[Reason]:
    """Reasons for 8-bit types: tensor cores do not transpose 8-bit operands, and all k-steps of a chain must have the same
    scale."""
    for field, only in (("x_layout", "mk"), ("weight_layout", "nk")):
        yield from support.choice_reason("OPF-S003", field, getattr(problem, field), (only,))
    scaling = problem.scaling
    if scaling is not None:
        yield from support.choice_reason("OPF-S003", "scaling.kind", scaling.kind, ("tensor", "token", "block"))
        inside = scaling.block_offset[1] % matmul_source.STEP
        yield from support.choice_reason("OPF-S003", f"scaling.block_offset[1] % {matmul_source.STEP}", inside, (0,))


class Form(NamedTuple):
    """template: path below csrc. in_any_batch: error model or "codes" -> the test of a row's bits. on_a_gpu: the same test on a
    GPU. sums: whether the kernel scales sums of groups, as in way_of."""

    descriptor: type[MatmulDescriptor] | type[GroupedMatmulDescriptor]
    template: str
    impl: str
    in_any_batch: Mapping[str, str]
    on_a_gpu: str
    sums: bool = False


class Shape(NamedTuple):
    """The shape of a problem's kernel: a tile, and the segments of k that are summed separately; None: one chain. repack:
    whether operands that TMA cannot load are copied first. terms: operands whose sum is the weight. factors: whether stages
    contain scales of rows."""

    tile: Tile
    segments: Segments | None
    repack: bool = False
    terms: int = 1
    factors: bool = False
    revision: int = 1

    def facts(self) -> dict[str, Fact]:
        return matmul_source.shape_of(*self[:3])

    def printed(self) -> dict[str, Fact]:
        return matmul_source.printed_shape(*self[:5])


class AnyShape(Protocol):
    """Protocol of the shape of a kernel: its facts in the SKU, and its constants in the template."""

    @property
    def segments(self) -> Segments | None: ...
    @property
    def repack(self) -> bool: ...
    @property
    def revision(self) -> int: ...
    def facts(self) -> dict[str, Fact]: ...
    def printed(self) -> dict[str, Fact]: ...
    def __hash__(self) -> int: ...


def _guarantee(problem: Product, target: Target, form: Form, segments: Segments | None) -> PrecisionGuarantee:
    kind = "codes" if matmul_source.codes_of(problem) is not None else _model_of(problem)
    return promise(problem, target, segments, (form.in_any_batch[kind], form.on_a_gpu), form.sums)


def _chain(problem: Product, sums: bool) -> int:
    """Elements of k whose sum a scale multiplies; 0: none does. sums: as in way_of."""
    weight = matmul_source.codes_of(problem)
    if weight is None or (problem.dtype not in FP8 and way_of(weight, problem.dtype, sums) != "sums"):
        return 0
    return matmul_source.part_of(weight)


def _model_of(problem: Product) -> str:
    return "matmul-mma16" if problem.dtype in HALVES else "matmul-mma8" if problem.dtype in FP8 else "matmul-s32"


def promise(
    problem: Product, target: Target, segments: Segments | None, evidence: tuple[str, ...], sums: bool = False
) -> PrecisionGuarantee:
    """The guarantee of a kernel. For every tile, sums are in the order of k, in segments that depend only on n and k, so the
    bits of a row depend on no other row. sums: as in way_of."""
    program = error_model(problem.program().values(), matmul_source.math_of(problem), "matmul", target.sm_version)
    model = _model_of(problem)
    constants = {"u": 2.0**-24} | dict(program.constants) | _SUMS[model]
    constants |= {"k_step": _K_STEP_BEFORE} if model == "matmul-mma16" and target.sm_version < 90 else {}
    constants |= {"segment": float(segments.length)} if segments is not None else {}
    several, chain = terms(matmul_source.codes_of(problem), problem.dtype, sums), _chain(problem, sums)
    constants |= {"terms": float(several)} if several > 1 else {}
    constants |= {"chain": float(chain)} if chain else {}
    return PrecisionGuarantee(
        math_precision=problem.dtype,
        accumulator="i32" if problem.dtype in INTEGERS else "f32",
        deterministic=True,
        bit_stable_on_same_hardware=True,
        batch_invariant="composition",
        error_model=ErrorModel(id=model, constants=tuple(sorted(constants.items()))),
        evidence=(*evidence, *REPEATS),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TileKernel(CudaKernel[Product]):
    """The kernel of one shape."""

    form: Form
    shape: AnyShape

    def facts(self, descriptor: Product) -> support.SpecPairs:
        return support.pairs(**matmul_source.facts(descriptor), **self.shape.facts())

    def jit_spec(self, descriptor: Product, target: Target) -> JitSpec:
        printed = matmul_source.printed(descriptor, self.form.sums) | self.shape.printed()
        return support.spec_of(self.form.template, support.pairs(**printed), target)

    def launcher(self, descriptor: Product, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        if self.is_empty(descriptor):
            return support.nothing_to_do
        scalars, spec = matmul_source.scalars(descriptor, self.shape.segments), self.jit_spec(descriptor, target)
        return support.launcher(spec, plain(descriptor), sku, allow_build, self.shape.repack, scalars)


class _Made(NamedTuple):
    kernel: _TileKernel
    sku: Callable[[Product, Target], KernelSku]


def candidate(
    form: Form,
    declines: Callable[[P, Target], Sequence[Reason]],
    shape: Callable[[P, Target], AnyShape],
    scratch: Callable[[P], int] | None = None,
) -> Candidate:
    """The candidate of the kernels of one form, with a kernel per shape. scratch: bytes of their workspace; None: the workspace
    holds copied operands."""

    @lru_cache(maxsize=1024)
    def made(one: AnyShape) -> _Made:
        kernel = _TileKernel(
            descriptor=form.descriptor,
            template=form.template,
            impl=form.impl,
            revision=one.revision,
            constants=matmul_source.facts,
            dtypes=matmul_source.dtypes,
            guarantee=partial(_guarantee, form=form, segments=one.segments),
            is_empty=writes_nothing,
            form=form,
            shape=one,
        )
        return _Made(kernel, cached_by_specialization(kernel.sku))

    def sku(problem: P, target: Target) -> KernelSku:
        return made(shape(problem, target)).sku(problem, target)

    def spec(problem: P, target: Target) -> JitSpec:
        return made(shape(problem, target)).kernel.jit_spec(problem, target)

    def launcher(problem: P, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        return made(shape(problem, target)).kernel.launcher(problem, target, sku, allow_build)

    def workspace(problem: P, target: Target) -> int:
        return matmul_repack.bytes_of(problem, shape(problem, target).repack) if scratch is None else scratch(problem)

    return Candidate("cuda", form.impl, form.descriptor, declines, sku, workspace, launcher, spec)
