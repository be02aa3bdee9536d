"""Quantisation on CUDA: named folds, and a separate kernel for matrices that are quantised by blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import CudaKernel, Fact
from opfacade.backends.cuda.folds.engine import fold_kernel
from opfacade.backends.cuda.folds.scaled_engine import scaled_kernel, unknown_bytes
from opfacade.core.candidate import Candidate, Reason
from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.guarantee import EXACT, ErrorModel, PrecisionGuarantee
from opfacade.core.target import Target
from opfacade.plans.quantize import DequantizeDescriptor, QuantizeDescriptor

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

_Problem: TypeAlias = QuantizeDescriptor | DequantizeDescriptor
_VECTOR, _THREADS, _MOST_PIECES = 8, 256, 16
_EVIDENCE = (
    "tests/families/quantize/test_blocks.py::test_a_kernel_has_the_bits_of_the_reference_on_every_layout",
    "tests/families/quantize/test_blocks.py::test_bits_of_a_block_do_not_depend_on_other_blocks",
)


def _rows_kernel(kind: type[Descriptor[Any]]) -> Candidate:
    """The fold kernel, which supports neither blocks nor num_valid with one scale for all rows."""
    plain = fold_kernel(kind)

    def declines(descriptor: _Problem, target: Target) -> Sequence[Reason]:
        if descriptor.quant.scale == "block":
            allowed = "none, static, tensor, token, group"
            return [*support.arch_reasons(target), Reason("OPF-S003", "quant.scale", "block", allowed)]
        if descriptor.num_valid and descriptor.folds_rows():
            reason = Reason("OPF-S003", "num_valid", "True", "False with one scale of all rows")
            return [*support.arch_reasons(target), reason, *unknown_bytes(descriptor, target)]
        return plain.declines(descriptor, target)

    return replace(plain, declines=declines)


def _pieces(descriptor: _Problem) -> int:
    """Vectors of a block per thread."""
    rows, columns = map(int, descriptor.quant.block)
    return -(-rows * -(-columns // _VECTOR) // _THREADS)


def _lacks(descriptor: _Problem, target: Target) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S003", "quant.scale", descriptor.quant.scale, ("block",))
    yield from unknown_bytes(descriptor, target)
    most = _VECTOR * _THREADS * _MOST_PIECES
    yield from support.limit_reason("OPF-S004", "quant.block", _VECTOR * _THREADS * _pieces(descriptor), most)


def _facts(descriptor: _Problem) -> Mapping[str, Fact]:
    rows, columns = descriptor.quant.block
    return {"block_rows": rows, "block_columns": columns} | ({"num_valid": True} if descriptor.num_valid else {})


def _dtypes(descriptor: _Problem) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, spec.dtype) for name, spec in operands_of(descriptor).items() if name != "num_valid"))


def _guarantee(descriptor: _Problem, target: Target) -> PrecisionGuarantee:
    return PrecisionGuarantee(
        math_precision="f32",
        accumulator="none",
        deterministic=True,
        bit_stable_on_same_hardware=True,
        batch_invariant="none" if descriptor.op == "quantize" else "composition",
        error_model=ErrorModel(id=EXACT),
        evidence=_EVIDENCE,
    )


class _Blocks(CudaKernel[_Problem]):
    """A kernel whose template has the SKU's constants, plus constants that follow from dtypes."""

    def jit_spec(self, descriptor: _Problem, target: Target) -> JitSpec:
        of = {name: spec.dtype for name, spec in operands_of(descriptor).items()}
        told: dict[str, Any] = {"from": of["x"], "to": of["out"], "scale": of["scale"], "dependent": target.sm_version >= 90}
        told["sizes"] = (ITEMSIZE[of["x"]], ITEMSIZE[of["out"]])
        if descriptor.op == "quantize":
            told |= {"largest": descriptor.quant.largest, "least": True}
        return support.spec_of(f"quantize/{descriptor.op}", support.pairs(**_facts(descriptor), **told), target)


def _blocks_kernel(kind: type[Descriptor[Any]]) -> Candidate:
    return _Blocks(
        descriptor=kind,
        template="",
        impl="blocks",
        constants=_facts,
        accepts=_lacks,
        size_free=True,
        dtypes=_dtypes,
        guarantee=_guarantee,
        scalars=lambda problem: (problem.quant.least,) if problem.op == "quantize" else (),
    ).candidate


CANDIDATES = (
    *(make(kind) for kind in (QuantizeDescriptor, DequantizeDescriptor) for make in (_rows_kernel, _blocks_kernel)),
    scaled_kernel(QuantizeDescriptor),
)
