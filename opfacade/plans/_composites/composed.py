"""composed: a candidate that runs plans of one backend one after the other in one workspace.

Each step uses the first candidate of the backend that accepts its problem, and its kernel is one of the kernels of the composed
candidate. Tensors between steps are in the workspace at `_composites.steps.places`, followed by the largest workspace of a
step."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opfacade.core.answer_cache import cached_by
from opfacade.core.candidate import WORKSPACE_ALIGNMENT, Candidate, Launcher, Offer, Reason
from opfacade.core.descriptor import Args, Descriptor, cached_by_specialization, operands_of
from opfacade.core.dtypes import ITEMSIZE, torch_dtype
from opfacade.core.guarantee import EXACT, ErrorModel, PrecisionGuarantee
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._composites.choices import Choice, chosen, shared_answer
from opfacade.plans._composites.growing import Stepwise, steps_of
from opfacade.plans._composites.rows_alone import bounded, by_other_sizes, offer
from opfacade.plans._composites.steps import Last, Place, Step, places

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.jit.spec import JitSpec

Pairs = tuple[tuple[str, Any], ...]
_MODELS = (EXACT, "f64", "f32", "mma16", "mma8")  # suffixes of the names of error models, strictest first


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

    def declines(problem: Stepwise[Any], target: Target) -> Sequence[Reason]:
        return chosen(problem, backend, target).reasons

    def of_parts(problem: Stepwise[Any], target: Target) -> Hashable:
        """The cache key of a SKU: sizes change the SKU only if they change the SKU of a step."""
        return problem.specialization, target, chosen(problem, backend, target).ids

    def sku(problem: Stepwise[Any], target: Target) -> KernelSku:
        parts = parts_of(problem, backend, target)
        spec = {**dict(facts(problem)), "parts": _digest(chosen(problem, backend, target).ids)}
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

    def workspace(problem: Stepwise[Any], target: Target) -> int:
        return chosen(problem, backend, target).workspace

    def launcher(problem: Stepwise[Any], target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        parts = parts_of(problem, backend, target)
        launches = [part.candidate.launcher(part.step.problem, target, part.sku, allow_build) for part in parts]
        room = _room(problem, [part.step for part in parts], chosen(problem, backend, target).chosen)
        return _runner(problem, room, [(part.step, run) for part, run in zip(parts, launches, strict=True)])

    def specs(problem: Stepwise[Any], target: Target) -> tuple[JitSpec, ...]:
        found = (part.candidate.jit_specs(part.step.problem, target) for part in parts_of(problem, backend, target))
        return tuple(dict.fromkeys(spec for of_part in found for spec in of_part))

    def sized(problem: Stepwise[Any], target: Target) -> Callable[[Stepwise[Any]], Offer] | None:
        """The SKU of earlier problems with the same kernels."""
        grows = problem.grows
        if not grows:
            return None
        answer_of = by_other_sizes(descriptor, grows, lambda one: shared_answer(one, backend, target))
        skus: dict[object, KernelSku] = {}

        def found(one: Stepwise[Any]) -> Offer:
            answer = answer_of(one)(one.__dict__[grows])
            if answer is None or answer[0].reasons:
                return offer(made, one, target)
            ids = answer[0].ids
            if ids not in skus:
                bounded(skus, ids, made.sku(one, target))
            return (), skus[ids], answer[1]

        return found

    slow = backend == "reference"
    compiled = None if slow else specs
    made = Candidate(
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
        sized=sized,
    )
    return made


def parts_of(problem: Stepwise[Any], backend: str, target: Target) -> tuple[Part, ...]:
    """The steps of an accepted problem, each with its candidate, the same with every compiler."""
    found = chosen(problem, backend, target).chosen
    return tuple(
        Part(step, one.candidate, one.sku)
        for step, one in zip(steps_of(problem), found, strict=True)
        if one.candidate is not None and one.sku is not None
    )


def together(family: str, parts: Sequence[Part]) -> PrecisionGuarantee:
    """The guarantee that holds for all parts. Names of constants begin with the names of their steps."""
    promises = [part.sku.precision_guarantee for part in parts]
    rounded = [one for one in promises if one.error_model.id != EXACT]  # exact steps depend only on their inputs
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
    """The error model of the composed op."""
    return weakest if weakest == EXACT else f"{family}-{_MODELS[_rank(weakest)]}"


def _rank(model: str) -> int:
    return _MODELS.index(model.rpartition("-")[2])


def _digest(ids: Sequence[str]) -> str:
    return f"p{hashlib.sha256(chr(10).join(ids).encode()).hexdigest()[:24]}"


def _room(problem: Stepwise[Any], steps: Sequence[Step], choices: Sequence[Choice]) -> Room:
    found, between = places(operands_of(problem), steps)
    own = between + -between % WORKSPACE_ALIGNMENT
    return Room(found, own, own + max(one.workspace for one in choices))


def _runner(problem: Stepwise[Any], room: Room, runs: Sequence[tuple[Step, Launcher]]) -> Launcher:
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
