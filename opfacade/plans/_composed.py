"""composed: a candidate that runs plans of one backend one after the other in one workspace.

Each step uses the first candidate of the backend that accepts its problem, and its kernel is one of the kernels of the composed
candidate. Tensors between steps are in the workspace at `plans._steps.places`, followed by the largest workspace of a step."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from opfacade.core.answer_cache import cached_by
from opfacade.core.candidate import COMPILER_TOO_OLD, WORKSPACE_ALIGNMENT, Candidate, Launcher, Reason
from opfacade.core.descriptor import Args, Descriptor, cached_by_specialization, memoize_last, operands_of
from opfacade.core.dtypes import ITEMSIZE, torch_dtype
from opfacade.core.guarantee import EXACT, ErrorModel, PrecisionGuarantee
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._steps import Last, Place, Step, places
from opfacade.select import registry

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.jit.spec import JitSpec

Pairs = tuple[tuple[str, Any], ...]
_MODELS = (EXACT, "f64", "f32", "mma16", "mma8")  # ends of the names of error models, strictest first


class Stepwise(Descriptor[Any]):
    """A descriptor that consists of other descriptors."""

    def steps(self) -> tuple[Step, ...]:
        raise NotImplementedError


class Part(NamedTuple):
    """A step and the candidate that runs it."""

    step: Step
    candidate: Candidate
    sku: KernelSku


class Room(NamedTuple):
    """The workspace: the tensors between steps, the offset of the workspace of a step, and the total size in bytes."""

    places: Mapping[str, Place]
    own: int
    total: int


def composed(
    descriptor: type[Descriptor[Any]],
    backend: str,
    dtypes: Callable[[Any], Pairs],
    facts: Callable[[Any], Pairs],
    impl: str = "plans",
    size_free: bool = False,
) -> Candidate:
    """The candidate of a descriptor with `steps()`. dtypes, facts: additional sorted pairs in the SKU. size_free: whether the
    kernels and workspaces of all steps follow from the specialization key."""

    def declines(problem: Stepwise, target: Target) -> Sequence[Reason]:
        chosen = _chosen(problem, backend, target)
        reasons = [_of_step(step, reason) for step, one in chosen for reason in _refusals(step, one, backend, target)]
        return tuple(dict.fromkeys(reasons))

    def of_parts(problem: Stepwise, target: Target) -> Hashable:
        """Sizes change the SKU only through those of the steps."""
        return (problem.specialization, target, *(part.sku.id for part in parts_of(problem, backend, target)))

    def sku(problem: Stepwise, target: Target) -> KernelSku:
        parts = parts_of(problem, backend, target)
        spec = {**dict(facts(problem)), "parts": _digest([part.sku.id for part in parts])}
        return KernelSku(
            category=problem.category,
            op=problem.op,
            backend=backend,
            arch=target.arch,
            impl=impl,
            revision=1,
            dtypes=dtypes(problem),
            layout="strided",
            spec=tuple(sorted(spec.items())),
            precision_guarantee=together(problem.category, parts),
        )

    def workspace(problem: Stepwise, target: Target) -> int:
        return _room(problem, parts_of(problem, backend, target), target).total

    def launcher(problem: Stepwise, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        parts = parts_of(problem, backend, target)
        launches = [part.candidate.launcher(part.step.problem, target, part.sku, allow_build) for part in parts]
        return _runner(problem, _room(problem, parts, target), [(p.step, run) for p, run in zip(parts, launches, strict=True)])

    def specs(problem: Stepwise, target: Target) -> tuple[JitSpec, ...]:
        found = (part.candidate.jit_specs(part.step.problem, target) for part in parts_of(problem, backend, target))
        return tuple(dict.fromkeys(spec for of_part in found for spec in of_part))

    slow = backend == "reference"
    compiled = None if slow else specs
    return Candidate(
        backend,
        impl,
        descriptor,
        cached_by_specialization(declines) if size_free else declines,
        cached_by_specialization(sku) if size_free else cached_by(of_parts, sku),
        cached_by_specialization(workspace) if size_free else workspace,
        launcher,
        parts=compiled,
        allocates=slow,
        synchronises=slow,
    )


@memoize_last
def parts_of(problem: Stepwise, backend: str, target: Target) -> tuple[Part, ...]:
    """The steps of an accepted problem, each with its candidate, the same with every compiler."""
    return tuple(
        Part(step, one, one.sku(step.problem, target)) for step, one in _chosen(problem, backend, target) if one is not None
    )


@memoize_last
def _chosen(problem: Stepwise, backend: str, target: Target) -> tuple[tuple[Step, Candidate | None], ...]:
    """Each step with its candidate, None if the backend has none."""
    return tuple((step, _taker(step, backend, target)) for step in problem.steps())


@lru_cache(maxsize=64)
def _offered(kind: type[Descriptor[Any]], backend: str) -> tuple[Candidate, ...]:
    return tuple(one for one in registry.candidates_for(kind) if one.backend == backend)


def _taker(step: Step, backend: str, target: Target) -> Candidate | None:
    """The first candidate that takes a step where the compiler is new enough."""
    for one in _offered(type(step.problem), backend):
        if all(reason.code == COMPILER_TOO_OLD for reason in one.declines(step.problem, target)):
            return one
    return None


def _refusals(step: Step, taker: Candidate | None, backend: str, target: Target) -> Sequence[Reason]:
    """Why a step has no candidate: the reasons of the one that would take it, or of the last one."""
    if taker is not None:
        return taker.declines(step.problem, target)
    reasons = [one.declines(step.problem, target) for one in _offered(type(step.problem), backend)]
    return reasons[-1] if reasons else (Reason("OPF-S003", "op", step.problem.op, f"an op with a candidate of {backend}"),)


def _of_step(step: Step, reason: Reason) -> Reason:
    """The reason, with the name of its step before the field: but the compiler is one for all."""
    if reason.code == COMPILER_TOO_OLD:
        return reason
    return Reason(reason.code, f"{step.name}.{reason.field}", reason.got, reason.allowed, reason.hint)


def together(family: str, parts: Sequence[Part]) -> PrecisionGuarantee:
    """The guarantee that all parts provide. Names of constants begin with the names of their steps."""
    promises = [part.sku.precision_guarantee for part in parts]
    rounded = [one for one in promises if one.error_model.id != EXACT]  # what is exact follows from the inputs alone
    weakest = max(promises, key=lambda one: _rank(one.error_model.id))
    constants = {
        f"{part.step.name}.{name}": value
        for part, promise in zip(parts, promises, strict=True)
        for name, value in promise.error_model.constants
    }
    conditions = {one.id: one for promise in promises for one in promise.conditions}
    return PrecisionGuarantee(
        math_precision=weakest.math_precision,
        accumulator=weakest.accumulator,
        deterministic=all(one.deterministic for one in rounded),
        bit_stable_on_same_hardware=all(one.bit_stable_on_same_hardware for one in rounded),
        batch_invariant="composition" if rounded and all(one.batch_invariant == "composition" for one in rounded) else "none",
        error_model=ErrorModel(id=_together(family, weakest.error_model.id), constants=tuple(sorted(constants.items()))),
        conditions=tuple(conditions[name] for name in sorted(conditions)),
        evidence=tuple(dict.fromkeys(test for one in promises for test in one.evidence)),
    )


def _together(family: str, weakest: str) -> str:
    """The error model of the whole."""
    return weakest if weakest == EXACT else f"{family}-{_MODELS[_rank(weakest)]}"


def _rank(model: str) -> int:
    return _MODELS.index(model.rpartition("-")[2])


def _digest(ids: Sequence[str]) -> str:
    return f"p{hashlib.sha256(chr(10).join(ids).encode()).hexdigest()[:24]}"


def _room(problem: Stepwise, parts: Sequence[Part], target: Target) -> Room:
    found, between = places(operands_of(problem), [part.step for part in parts])
    own = between + -between % WORKSPACE_ALIGNMENT
    return Room(found, own, own + max(part.candidate.workspace(part.step.problem, target) for part in parts))


def _runner(problem: Stepwise, room: Room, runs: Sequence[tuple[Step, Launcher]]) -> Launcher:
    known = operands_of(problem)

    def launch(args: Args, workspace: Tensor | None) -> None:
        tensors = {name: getattr(args, name) for name in known}
        rest = None if workspace is None else workspace[room.own :]
        if workspace is not None:
            tensors |= {name: _view(workspace, place) for name, place in room.places.items()}
        for step, run in runs:
            given = {operand: _taken(tensors, one) for operand, one in step.tensors.items()}
            run(step.problem.args_type(**given), rest)

    return launch


def _taken(tensors: Mapping[str, Tensor], one: str | Last) -> Tensor:
    return tensors[one.name][-1:] if isinstance(one, Last) else tensors[one]


def _view(workspace: Tensor, place: Place) -> Tensor:
    shape = [dim.size or 0 for dim in place.spec.shape]
    stop = place.offset + math.prod(shape) * ITEMSIZE[place.spec.dtype]
    return workspace[place.offset : stop].view(torch_dtype(place.spec.dtype)).view(shape)
