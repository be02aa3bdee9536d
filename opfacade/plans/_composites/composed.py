"""composed: a candidate that runs plans of one backend one after the other in one workspace.

Each step uses the first candidate of the backend that accepts its problem, and its kernel is one of the kernels of the composed
candidate. Tensors between steps are in the workspace at `_composites.steps.places`, followed by the largest workspace of a
step."""

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
from opfacade.plans._composites.growing import Growing, Stepwise, growing_of, steps_of
from opfacade.plans._composites.steps import Last, Place, Step, places
from opfacade.select import registry

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


class Choice(NamedTuple):
    """The candidate of a step, with its SKU and workspace; None if the backend has none. reasons: if there is a candidate, only
    that the compiler is too old."""

    name: str
    candidate: Candidate | None
    reasons: Sequence[Reason]
    sku: KernelSku | None = None
    workspace: int = 0
    sku_id: str = ""


class Kept(NamedTuple):
    """The choices of all steps at one row; others: the steps whose choices change with the number of rows."""

    choices: Sequence[Choice]
    others: tuple[int, ...]


class Answer(NamedTuple):
    """The choice of each step; the ids of their kernels, and bytes of the workspace: the tensors between steps, and the largest
    workspace of a step."""

    chosen: Sequence[Choice]
    ids: tuple[str, ...]
    workspace: int


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
        chosen = _chosen(problem, backend, target).chosen
        reasons = [_of_step(one.name, reason) for one in chosen for reason in one.reasons]
        return tuple(dict.fromkeys(reasons)) if reasons else ()

    def of_parts(problem: Stepwise[Any], target: Target) -> Hashable:
        """The cache key of a SKU: sizes change the SKU only if they change the SKU of a step."""
        return problem.specialization, target, _chosen(problem, backend, target).ids

    def sku(problem: Stepwise[Any], target: Target) -> KernelSku:
        parts = parts_of(problem, backend, target)
        spec = {**dict(facts(problem)), "parts": _digest(_chosen(problem, backend, target).ids)}
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
        return _chosen(problem, backend, target).workspace

    def launcher(problem: Stepwise[Any], target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        parts = parts_of(problem, backend, target)
        launches = [part.candidate.launcher(part.step.problem, target, part.sku, allow_build) for part in parts]
        room = _room(problem, [part.step for part in parts], _chosen(problem, backend, target).chosen)
        return _runner(problem, room, [(part.step, run) for part, run in zip(parts, launches, strict=True)])

    def specs(problem: Stepwise[Any], target: Target) -> tuple[JitSpec, ...]:
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


def parts_of(problem: Stepwise[Any], backend: str, target: Target) -> tuple[Part, ...]:
    """The steps of an accepted problem, each with its candidate, the same with every compiler."""
    chosen = _chosen(problem, backend, target).chosen
    return tuple(
        Part(step, one.candidate, one.sku)
        for step, one in zip(steps_of(problem), chosen, strict=True)
        if one.candidate is not None and one.sku is not None
    )


@memoize_last
def _chosen(problem: Stepwise[Any], backend: str, target: Target) -> Answer:
    """Choices that no size changes are made once."""
    growing = growing_of(problem)
    if growing is None:
        steps = problem.steps()
        found = [_choice(step.name, step.problem, backend, target) for step in steps]
        return answer_of(found, places(operands_of(problem), steps)[1])
    rows, kept = growing.rows_of(problem), _kept(growing, backend, target)
    found = [*kept.choices]
    for at in kept.others:
        found[at] = _choice(growing.steps[at].name, growing.problem(at, rows), backend, target)
    return answer_of(found, growing.bytes_at(rows))


def answer_of(chosen: Sequence[Choice], between: int) -> Answer:
    """between: bytes of the tensors between steps."""
    ids = tuple([one.sku_id for one in chosen if one.sku_id])
    own = between + -between % WORKSPACE_ALIGNMENT
    return Answer(chosen, ids, own + max([one.workspace for one in chosen]))


@lru_cache(maxsize=64)
def _offered(kind: type[Descriptor[Any]], backend: str) -> tuple[Candidate, ...]:
    return tuple(one for one in registry.candidates_for(kind) if one.backend == backend)


@lru_cache(maxsize=256)
def _kept(growing: Growing, backend: str, target: Target) -> Kept:
    choices = tuple(_choice(step.name, step.problem, backend, target) for step in growing.steps)
    free = [_is_free(step, choice, backend) for step, choice in zip(growing.steps, choices, strict=True)]
    return Kept(choices, tuple(at for at, kept in enumerate(free) if not kept))


def _is_free(step: Step, choice: Choice, backend: str) -> bool:
    """Whether no size changes the choice."""
    offered = _offered(type(step.problem), backend)
    asked = offered if choice.candidate is None else offered[: offered.index(choice.candidate) + 1]
    return all(one.size_free for one in asked)


def _choice(name: str, problem: Descriptor[Any], backend: str, target: Target) -> Choice:
    """The first candidate that accepts the problem, apart from a compiler that is too old; otherwise the reasons of the
    candidate that is nearest to it."""
    refusals: list[Sequence[Reason]] = []
    for one in _offered(type(problem), backend):
        reasons = one.declines(problem, target)
        if not reasons or all(reason.code == COMPILER_TOO_OLD for reason in reasons):
            sku = one.sku(problem, target)
            return Choice(name, one, reasons, sku, one.workspace(problem, target), sku.id)
        refusals.append(reasons)
    none = (Reason("OPF-S003", "op", problem.op, f"an op with a candidate of {backend}"),)
    return Choice(name, None, min(refusals, key=_distance) if refusals else none)


def _distance(reasons: Sequence[Reason]) -> tuple[int, int]:
    """How far a candidate is from a problem: by the number of its reasons; with equal numbers, the
    nearer one serves a field and refuses a part of it."""
    return len(reasons), -max(reason.field.count(".") for reason in reasons)


def _of_step(name: str, reason: Reason) -> Reason:
    """The reason, with the step's name before the field; unchanged for the compiler, which all steps share."""
    if reason.code == COMPILER_TOO_OLD:
        return reason
    return Reason(reason.code, f"{name}.{reason.field}", reason.got, reason.allowed, reason.hint)


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


def _room(problem: Stepwise[Any], steps: Sequence[Step], chosen: Sequence[Choice]) -> Room:
    found, between = places(operands_of(problem), steps)
    own = between + -between % WORKSPACE_ALIGNMENT
    return Room(found, own, own + max(one.workspace for one in chosen))


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
