"""reference: declares a reference implementation by its guarantee and a function that runs one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from opfacade.backends.reference.inference import in_inference_mode
from opfacade.core.candidate import Candidate, Launcher
from opfacade.core.descriptor import Descriptor, cached_by_specialization
from opfacade.core.guarantee import Condition, ErrorModel, PrecisionGuarantee
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target

T = TypeVar("T")
Told: TypeAlias = T | Callable[[Any], T]  # a constant, or a function of the descriptor
Pairs: TypeAlias = tuple[tuple[str, Any], ...]
READS_INDICES = Condition(id="host_reads_indices", text="index tensors are read on the host")


def in_fp64(error_model: str) -> PrecisionGuarantee:
    """Guarantee of a formula computed in float64."""
    return PrecisionGuarantee(math_precision="f64", accumulator="f64", error_model=ErrorModel(id=error_model))


def reference(
    descriptor: type[Descriptor[Any]],
    error_model: Told[str | PrecisionGuarantee],
    dtypes: Told[Pairs],
    run: Callable[[Any, Any], None],
    facts: Told[Pairs] = (),
    revision: int = 1,
) -> Candidate:
    """A torch candidate that accepts every problem.

    error_model: the error model of an fp64 result, or the whole guarantee. dtypes, facts: sorted pairs in the SKU. run:
    (descriptor, args) -> None, writes the outputs. revision: incremented with each change of output bits.
    """

    def sku(problem: Descriptor[Any], target: Target) -> KernelSku:
        promise = _for(problem, error_model)
        return KernelSku(
            category=problem.category,
            op=problem.op,
            backend="reference",
            arch=target.arch,
            impl="torch",
            revision=revision,
            dtypes=_for(problem, dtypes),
            layout="strided",
            spec=_for(problem, facts),
            precision_guarantee=in_fp64(promise) if isinstance(promise, str) else promise,
        )

    def launcher(problem: Descriptor[Any], target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        return lambda args, workspace: run(problem, args)

    return Candidate(
        "reference",
        "torch",
        descriptor,
        declines=lambda problem, target: (),
        sku=cached_by_specialization(sku),
        workspace=lambda problem, target: 0,
        launcher=in_inference_mode(launcher),
        allocates=True,
        synchronises=True,
    )


def _for(problem: Descriptor[Any], told: Told[T]) -> T:
    found: T = told(problem) if callable(told) else told
    return found
