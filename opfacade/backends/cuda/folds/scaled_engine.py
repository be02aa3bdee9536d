"""The CUDA engine of rows with one scale of all of them, in three launches.

The first finds the largest result of each row, the second the scale, and the third computes the results again and divides them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from typing_extensions import TypeVar

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import plain
from opfacade.backends.cuda.folds import config as fold_config
from opfacade.backends.cuda.folds import engine
from opfacade.backends.cuda.folds.layout import RowLayout, math_of
from opfacade.backends.cuda.folds.printer import Printer
from opfacade.backends.cuda.folds.strategies import scaled
from opfacade.backends.cuda.programs import source
from opfacade.core.candidate import WORKSPACE_ALIGNMENT, Candidate, Launcher, Reason
from opfacade.core.descriptor import Descriptor
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._folds.form import cached_by_form
from opfacade.plans._folds.op import Quantised, QuantisedFold
from opfacade.plans._folds.program import FoldProgram
from opfacade.plans._folds.tensor_scale import MOST
from opfacade.programs.expression import stage
from opfacade.programs.guarantees import Math

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

_EVIDENCE = (
    "tests/families/quantize/test_tensor_scale.py::test_it_is_the_op_without_quant_then_quantize",
    "tests/families/quantize/test_tensor_scale.py::test_it_keeps_its_bound_and_strides_do_not_matter",
)
Q = TypeVar("Q", bound=QuantisedFold, default=QuantisedFold)


class ScaledRows(RowLayout):
    """Lanes share a row, and functions are approximated, as in the op without quantisation: before rounding, the results have
    the same bits."""

    impl, template, evidence = "scaled", "reduction/fold_scaled", _EVIDENCE
    one_scale = True

    def config(self, program: FoldProgram, target: Target) -> Any:
        return fold_config.config(_unquantised(program), target)

    def math(self, program: FoldProgram) -> Math:
        return math_of(_unquantised(program))


def _unquantised(program: FoldProgram) -> FoldProgram:
    return _unquantised_form(program).on(program.shape)


@cached_by_form
def _unquantised_form(program: FoldProgram) -> FoldProgram:
    """The same results in the dtype of x, without the last stage, which computes the maximum."""
    made = (one for one in program.outputs if one.name != MOST)
    dtype = program.inputs[0].dtype
    outputs = tuple(one.model_copy(update={"dtype": dtype}) for one in made)
    return program.model_copy(update={"outputs": outputs, "stages": program.stages[:-1] or program.stages})


def other_scales(descriptor: Quantised) -> Iterator[Reason]:
    """A reason against what has no scale of a tensor."""
    if descriptor.quant is None or descriptor.quant.scale != "tensor":
        yield Reason("OPF-S003", "quant.scale", str(descriptor.quant and descriptor.quant.scale), "tensor")
    elif descriptor.quant.zero:
        yield Reason("OPF-S003", "quant.zero", "True", "False")


def unknown_bytes(descriptor: Quantised, target: Target) -> Iterator[Reason]:
    """The reason if the target has no conversion to fp8. It is added to the reasons of each candidate, so that an error names
    the device."""
    if descriptor.quant is not None and descriptor.quant.dtype != "i8":
        yield from support.fp8_reasons(target, descriptor.quant.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledKernel(engine.FoldKernel[Q]):
    """With a workspace for the largest results of rows. The descriptor has `launched`."""

    def launched(self, descriptor: Q) -> FoldProgram:
        return descriptor.launched()

    def row(self, descriptor: Q) -> tuple[int, ...]:
        """Empty if the descriptor has no launch with one scale."""
        return () if any(other_scales(descriptor)) else super(ScaledKernel, self).row(descriptor)

    def declines(self, descriptor: Q, target: Target) -> list[Reason]:
        reasons = list(other_scales(descriptor))
        if reasons:
            return [*support.arch_reasons(target), *reasons, *unknown_bytes(descriptor, target)]
        return super(ScaledKernel, self).declines(descriptor, target)

    def workspace(self, descriptor: Q, target: Target) -> int:
        program = descriptor.launched()
        norms: int = math.prod(program.shape[axis] for axis in program.kept)
        needed = ITEMSIZE["f32"] * norms
        return -(-needed // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT

    def jit_spec(self, descriptor: Q, target: Target) -> JitSpec:
        return support.spec_of(self.layout.template, support.pairs(**self.printed(descriptor, target)), target)

    def printed(self, descriptor: Q, target: Target) -> dict[str, Any]:
        """Constants of the template."""
        program, quant = descriptor.launched(), descriptor.quant
        assert quant is not None
        found = engine.constants(self.layout, program, descriptor.dims(), target)
        scale = quant.scale_of(stage(len(program.stages) - 1, "f32"))
        found["scale_values"] = Printer.of(program, self.layout.math(program)).told([scale])
        found |= {"scale_threads": scaled.THREADS, "scale_slots": scaled.slots()}
        return found | {"scale_dtype": quant.scale_dtype, "scale_ctas": scaled.CTAS if target.sm_version >= 90 else 1}

    def launcher(self, descriptor: Q, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        scalars = source.arguments(descriptor.launched())
        return support.launcher(self.jit_spec(descriptor, target), plain(descriptor), sku, allow_build, True, scalars)


def scaled_kernel(descriptor: type[Descriptor[Any]]) -> Candidate:
    """The kernel of an op over rows whose outputs may share one scale."""
    return engine.fold_kernel(descriptor, ScaledRows(), ScaledKernel)


def without_one_scale(whole: Candidate) -> Candidate:
    """A kernel that declines one scale of all rows."""

    def declines(descriptor: QuantisedFold, target: Target) -> Sequence[Reason]:
        quant = descriptor.quant
        if quant is not None and quant.scale == "tensor":
            reason = Reason("OPF-S003", "quant.scale", "tensor", "none, static, token, group")
            return [*support.arch_reasons(target), reason, *unknown_bytes(descriptor, target)]
        return whole.declines(descriptor, target)

    return replace(whole, declines=declines)
