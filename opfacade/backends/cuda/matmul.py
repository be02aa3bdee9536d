"""Products of matrices on CUDA: tiles of wgmma for sm_90a whose sums have one order of k."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from opfacade.backends.cuda import program_source as source
from opfacade.backends.cuda import ptxas, support
from opfacade.backends.cuda.declared import REPEATS, CudaKernel, Fact, writes_nothing
from opfacade.backends.cuda.matmul_tiles import Sizes, Tile, tile_of
from opfacade.core.candidate import Candidate, Launcher, Reason
from opfacade.core.descriptor import cached_by_specialization
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans.matmul import MatmulDescriptor
from opfacade.programs.expression import ordered
from opfacade.programs.guarantees import Math, error_model

ARCH = "sm_90a"
_FEW = 4  # instructions of a program whose code is short
_SUMS = {"u_acc": 2.0**-23, "k_step": 16.0}  # tensor cores truncate once every 16 products
_EVIDENCE = (
    "tests/families/matmul/test_matmul_kernel.py::test_a_row_has_its_bits_in_any_batch",
    "tests/families/matmul/test_matmul_gpu.py::test_a_row_has_its_bits_among_any_rows_on_a_gpu",
    *REPEATS,
)


def _math(problem: Any) -> Math:
    return source.math_of([(problem.result, problem.program()["out"])])


def _facts(problem: Any) -> Mapping[str, Fact]:
    """Fields that decide which code a product has, besides its dtypes."""
    flags = ("accumulate", "add", "bias", "gated", "num_valid")
    found: dict[str, Fact] = {name: True for name in flags if getattr(problem, name)}
    found |= {"activation": problem.activation} if problem.activation != "none" else {}
    layouts = (("weight_layout", "nk"), ("x_layout", "mk"))
    return found | {name: getattr(problem, name) for name, plain in layouts if getattr(problem, name) != plain}


def _dtypes(problem: Any) -> tuple[tuple[str, str], ...]:
    found = {"out": problem.result, "x": problem.dtype}
    if problem.bias:
        found["bias"] = problem.bias_dtype or problem.result
    return tuple(sorted(found.items()))


def _guarantee(problem: Any, target: Target) -> PrecisionGuarantee:
    """One chain of steps of 16 products in the order of k, whatever the tile: the bits of a row depend on no other row."""
    program = error_model(problem.program().values(), _math(problem), "matmul", target.sm_version)
    constants = {"u": 2.0**-24} | dict(program.constants) | _SUMS
    return PrecisionGuarantee(
        math_precision=problem.dtype,
        accumulator="f32",
        deterministic=True,
        bit_stable_on_same_hardware=True,
        batch_invariant="composition",
        error_model=ErrorModel(id="matmul-mma16", constants=tuple(sorted(constants.items()))),
        evidence=_EVIDENCE,
    )


def _printed(problem: Any) -> dict[str, Any]:
    """The program, and the types of its tensors."""
    value = problem.program()["out"]
    names = tuple(dict.fromkeys(str(node.data) for node in ordered([value]) if node.kind == "input"))
    scalars = [number.name for number in problem.scalars]
    return {
        "inputs": names,
        "nodes": source.statements([value], names, scalars, _math(problem)),
        "dtype": problem.dtype,
        "out_dtype": problem.result,
        "out_size": ITEMSIZE[problem.result],
        "bias_dtype": problem.bias_dtype or problem.result,
        "numbers": len(scalars),
        "blocks": 8 if source.weight([value], _math(problem)) <= _FEW else 4,
        "gated": problem.gated,
        "x_layout": problem.x_layout,
        "weight_layout": problem.weight_layout,
    } | ({"num_valid": True} if problem.num_valid else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class _TileKernel(CudaKernel):
    """The kernel of one tile."""

    tile: Tile

    def facts(self, descriptor: Any) -> support.SpecPairs:
        rows, columns, panels, cluster = self.tile
        shape = {"tile_rows": rows, "tile_columns": columns, "tile_panels": panels}
        return support.pairs(**_facts(descriptor), **shape, **({"cluster": cluster} if cluster > 1 else {}))

    def jit_spec(self, descriptor: Any, target: Target) -> Any:
        rows, columns, panels, cluster = self.tile
        shape = {"tile_rows": rows, "tile_columns": columns, "tile_panels": panels}
        shape |= {"stages": self.tile.stages, "cluster": cluster}
        return support.spec_of("matmul/matmul", support.pairs(**_printed(descriptor), **shape), target)


@cache
def _kernel(tile: Tile) -> tuple[CudaKernel, Any]:
    """A kernel, and its SKU by specialization."""
    made = _TileKernel(
        descriptor=MatmulDescriptor,
        template="matmul/matmul",
        impl="wgmma_tile",
        constants=_facts,
        dtypes=_dtypes,
        guarantee=_guarantee,
        scalars=lambda problem: (*source.numbers(problem), problem.sm_limit or 0),
        is_empty=writes_nothing,
        tile=tile,
    )
    return made, cached_by_specialization(made.sku)


def _of(problem: Any, target: Target) -> tuple[CudaKernel, Any]:
    sms = min(target.sm_count, problem.sm_limit or target.sm_count)
    least = 64 if problem.weight_layout == "kn" else 32
    sizes = Sizes(problem.total_num_rows, problem.n * problem.columns, problem.k, problem.batch, least)
    return _kernel(tile_of(sizes, sms))


def _lacks(problem: Any, target: Target) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,))
    yield from support.choice_reason("OPF-S002", "dtype", problem.dtype, ("f16", "bf16"))


@cached_by_specialization
def _unfit(problem: Any, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks(problem, target))


def _declines(problem: Any, target: Target) -> tuple[Reason, ...]:
    return _unfit(problem, target) or ptxas.reasons()


def _sku(problem: Any, target: Target) -> KernelSku:
    found: KernelSku = _of(problem, target)[1](problem, target)
    return found


def _spec(problem: Any, target: Target) -> Any:
    return _of(problem, target)[0].jit_spec(problem, target)


def _launcher(problem: Any, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    return _of(problem, target)[0].launcher(problem, target, sku, allow_build)


CANDIDATES = (Candidate("cuda", "wgmma_tile", MatmulDescriptor, _declines, _sku, lambda problem, target: 0, _launcher, _spec),)
