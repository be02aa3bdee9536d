"""CudaKernel: a CUDA implementation declared as data; `candidate` is its entry in the registry.

It suits ops with one template, no workspace and no split. An implementation whose splits or tiles depend on sizes needs its own
Candidate, as in attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, cast

from typing_extensions import TypeVar

from opfacade.backends.cuda import support
from opfacade.core.any_size import at_any_size
from opfacade.core.candidate import Candidate, Launcher, Reason
from opfacade.core.descriptor import Descriptor, cached_by_specialization, operands_of
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.core.operands import numel
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

T = TypeVar("T")
D = TypeVar("D", default=Any)  # the descriptor type, or a protocol of the fields that the kernel uses
Told: TypeAlias = T | Callable[[Any], T]  # a constant, or a function of the descriptor
Fact: TypeAlias = bool | int | str
# Evidence for every op: these tests check that each kernel in the matrix of problems repeats its bits.
REPEATS = (
    "tests/testing/test_determinism.py::test_runs_repeat_bitwise_on_a_busy_gpu",
    "tests/testing/test_determinism.py::test_processes_repeat_bitwise",
)


def repeatable(math: str, accumulator: str, error_model: str, evidence: tuple[str, ...], **more: object) -> PrecisionGuarantee:
    """Guarantee of a kernel that gives the same bits in every run and process. more: other fields of the guarantee."""
    return PrecisionGuarantee(
        math_precision=math,
        accumulator=accumulator,
        deterministic=True,
        bit_stable_on_same_hardware=True,
        error_model=ErrorModel(id=error_model),
        evidence=evidence,
        **more,
    )


def _for(descriptor: object, told: Told[T]) -> T:
    found: T = told(descriptor) if callable(told) else told
    return found


def plain(problem: object) -> Descriptor[Any]:
    """Casts a problem to Descriptor; a kernel declares only the fields that it uses."""
    return cast("Descriptor[Any]", problem)


def writes_nothing(descriptor: Descriptor[Any]) -> bool:
    """Whether every written operand is empty."""
    return all(numel(spec) == 0 for spec in operands_of(descriptor).values() if spec.written)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaKernel(Generic[D]):
    """One implementation of one descriptor type.

    template: path below csrc, without suffix. impl: the name in the SKU. name: the candidate's name, if impl depends on the
    descriptor. revision: incremented with each change of output bits. accepts: field -> allowed values, or a function
    (descriptor, target) that yields all reasons except those of the architecture. constants: the template's constants, as names
    of fields or as a function; `later` fields at their default are omitted. dtypes: operand -> the field of its dtype, or a
    function that returns the SKU's pairs. guarantee: that of the SKU, or a function (descriptor, target) that returns it.
    in_dtypes: constants that are dtypes, and so not facts of the SKU; fields in `dtypes` need not be listed. scalars: arguments
    of `run` after the operands. is_empty: whether there is nothing to launch. size_free: as in Candidate; without a function
    `accepts`, it follows from the fields.
    """

    descriptor: type[Descriptor[Any]]
    template: Told[str]
    impl: Told[str]
    constants: Sequence[str] | Callable[[Any], Mapping[str, Fact]]
    dtypes: Mapping[str, str] | Callable[[Any], tuple[tuple[str, str], ...]]
    guarantee: PrecisionGuarantee | Callable[[Any, Target], PrecisionGuarantee]
    accepts: Mapping[str, Sequence[Any]] | Callable[[Any, Target], Iterator[Reason]] | None = None
    name: str = ""
    revision: int = 1
    in_dtypes: tuple[str, ...] = ()
    scalars: Told[tuple[Fact | float, ...]] = ()
    is_empty: Callable[[Any], bool] = writes_nothing
    size_free: bool = False

    @property
    def candidate(self) -> Candidate:
        free = self.size_free or not (callable(self.accepts) or {*(self.accepts or ())} & self.descriptor.sizes)
        return Candidate(
            "cuda",
            self.name or _for(None, self.impl),
            self.descriptor,
            at_any_size(self.declines) if free else self.declines,
            cached_by_specialization(self.sku),
            lambda descriptor, target: 0,
            self.launcher,
            self.jit_spec,
            size_free=free,
        )

    def declines(self, descriptor: D, target: Target) -> list[Reason]:
        return [*support.arch_reasons(target), *self._lacks(descriptor, target)]

    def _lacks(self, descriptor: D, target: Target) -> Iterator[Reason]:
        if callable(self.accepts):
            yield from self.accepts(descriptor, target)
            return
        for field, allowed in (self.accepts or {}).items():
            code = "OPF-S002" if field.endswith("dtype") else "OPF-S003"
            yield from support.choice_reason(code, field, getattr(descriptor, field), allowed)

    def facts(self, descriptor: D) -> support.SpecPairs:
        """The compile-time constants."""
        if callable(self.constants):
            return support.pairs(**self.constants(descriptor))
        kind = self.descriptor
        named = {name: getattr(descriptor, name) for name in self.constants}
        at_default = {name for name in kind.later & named.keys() if named[name] == kind.model_fields[name].default}
        return support.pairs(**{name: value for name, value in named.items() if name not in at_default})

    def jit_spec(self, descriptor: D, target: Target) -> JitSpec:
        return support.spec_of(_for(descriptor, self.template), self.facts(descriptor), target)

    def sku(self, descriptor: D, target: Target) -> KernelSku:
        if callable(self.dtypes):
            dtypes, hidden = self.dtypes(descriptor), self.in_dtypes
        else:
            dtypes = tuple((operand, getattr(descriptor, field)) for operand, field in sorted(self.dtypes.items()))
            hidden = (*self.in_dtypes, *self.dtypes.values())
        return KernelSku(
            category=self.descriptor.category,
            op=self.descriptor.model_fields["op"].default,
            backend="cuda",
            arch=target.arch,
            impl=_for(descriptor, self.impl),
            revision=self.revision,
            dtypes=dtypes,
            layout="strided",
            spec=tuple((name, value) for name, value in self.facts(descriptor) if name not in hidden),
            precision_guarantee=self.guarantee(descriptor, target) if callable(self.guarantee) else self.guarantee,
        )

    def launcher(self, descriptor: D, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        if self.is_empty(descriptor):
            return support.nothing_to_do
        scalars = _for(descriptor, self.scalars)
        return support.launcher(self.jit_spec(descriptor, target), plain(descriptor), sku, allow_build, False, scalars)
