"""The candidate of each step of a composite plan. Choices that no size changes are made once; for a new size, the tiles of the
other steps name a choice that was made before."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from opfacade.core.any_size import AtAnySize
from opfacade.core.candidate import COMPILER_TOO_OLD, WORKSPACE_ALIGNMENT, Candidate, Reason
from opfacade.core.descriptor import Descriptor, memoize_last, operands_of
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._composites.growing import Growing, Stepwise, growing_of
from opfacade.plans._composites.steps import places
from opfacade.select import registry

_ROWS = {"total_num_rows", "num_x_rows"}
_MOST_MADE = 256


class Choice(NamedTuple):
    """The candidate of a step, with its SKU and workspace; None if the backend has none. reasons: if there is a candidate, only
    that the compiler is too old."""

    name: str
    candidate: Candidate | None
    reasons: Sequence[Reason]
    sku: KernelSku | None = None
    workspace: int = 0
    sku_id: str = ""


class Answer(NamedTuple):
    """The choice of each step; the ids of their kernels; the reasons against any; bytes of the workspace: the tensors between
    steps, and the largest workspace of a step."""

    chosen: Sequence[Choice]
    ids: tuple[str, ...]
    reasons: tuple[Reason, ...]
    workspace: int


class Other(NamedTuple):
    """A step whose choice changes with the number of rows. factor: its rows per row. first: the candidates that are asked first
    and have `by_rows`. by_rows: those of all of them for this step, if there are any."""

    at: int
    factor: int
    first: tuple[Candidate, ...]
    by_rows: Callable[[int], Hashable] | None


class Kept(NamedTuple):
    """The choices of all steps at one row. others: the steps whose choices change with the number of rows. made: answers
    without tensors between steps, by the answers of `by_rows` of the others."""

    choices: Sequence[Choice]
    others: tuple[Other, ...]
    made: dict[tuple[Hashable, ...], Answer]


def shared_answer(problem: Stepwise[Any], backend: str, target: Target) -> Callable[[int], tuple[Answer, int] | None]:
    """For problems that differ in rows alone, a function of their number: the answer without the tensors between steps, and the
    workspace with them; None if such a problem makes its own steps."""
    growing = growing_of(problem)
    if growing is None:
        return lambda rows: None
    kept, most = _kept(growing, backend, target), growing.most

    def at(rows: int) -> tuple[Answer, int] | None:
        return _at(growing, kept, rows, backend, target) if 1 <= rows <= most else None

    return at


@memoize_last
def chosen(problem: Stepwise[Any], backend: str, target: Target) -> Answer:
    growing = growing_of(problem)
    if growing is None:
        steps = problem.steps()
        found = [_choice(step.name, step.problem, backend, target) for step in steps]
        return answer_of(found, places(operands_of(problem), steps)[1])
    known, workspace = _at(growing, _kept(growing, backend, target), growing.rows_of(problem), backend, target)
    return known._replace(workspace=workspace)


def _at(growing: Growing, kept: Kept, rows: int, backend: str, target: Target) -> tuple[Answer, int]:
    said = tuple([None if one.by_rows is None else one.by_rows(one.factor * rows) for one in kept.others])
    known = kept.made.get(said) or _made(growing, kept, said, rows, backend, target)
    between = growing.bytes_at(rows)
    return known, between + -between % WORKSPACE_ALIGNMENT + known.workspace


def _made(growing: Growing, kept: Kept, said: tuple[Hashable, ...], rows: int, backend: str, target: Target) -> Answer:
    found = [*kept.choices]
    for other in kept.others:
        found[other.at] = _choice(growing.steps[other.at].name, growing.problem(other.at, rows), backend, target)
    answer = answer_of(tuple(found), 0)
    if None not in said and all(found[other.at].candidate in other.first for other in kept.others):
        if len(kept.made) >= _MOST_MADE:
            kept.made.clear()
        kept.made[said] = answer
    return answer


def answer_of(found: Sequence[Choice], between: int) -> Answer:
    """between: bytes of the tensors between steps."""
    ids = tuple([one.sku_id for one in found if one.sku_id])
    reasons = dict.fromkeys(_of_step(one.name, reason) for one in found for reason in one.reasons)
    own = between + -between % WORKSPACE_ALIGNMENT
    return Answer(found, ids, tuple(reasons), own + max([one.workspace for one in found]))


@lru_cache(maxsize=64)
def _offered(kind: type[Descriptor[Any]], backend: str) -> tuple[Candidate, ...]:
    return tuple(one for one in registry.candidates_for(kind) if one.backend == backend)


@lru_cache(maxsize=256)
def _kept(growing: Growing, backend: str, target: Target) -> Kept:
    choices = tuple(_choice(step.name, step.problem, backend, target) for step in growing.steps)
    free = [_is_free(step.problem, choice, backend) for step, choice in zip(growing.steps, choices, strict=True)]
    return Kept(choices, tuple(_other(growing, at, backend, target) for at, kept in enumerate(free) if not kept), {})


def _is_free(problem: Descriptor[Any], choice: Choice, backend: str) -> bool:
    """Whether no size changes the choice."""
    offered = _offered(type(problem), backend)
    asked = offered if choice.candidate is None else offered[: offered.index(choice.candidate) + 1]
    return all(one.size_free for one in asked)


def _other(growing: Growing, at: int, backend: str, target: Target) -> Other:
    problem, factors = growing.steps[at].problem, growing.factors[at]
    offered = (one for one in _offered(type(problem), backend) if not _refuses(one, problem, target))
    first: list[Candidate] = []
    by_rows: list[Callable[[int], Hashable]] = []
    for one in offered if factors.keys() <= _ROWS else ():
        make = None if one.by_rows is None else one.by_rows(problem, target)
        if make is None:
            break
        first.append(one)
        by_rows.append(make)
    return Other(at, factors.get("total_num_rows", 0), tuple(first), _all_of(by_rows))


def _all_of(by_rows: list[Callable[[int], Hashable]]) -> Callable[[int], Hashable] | None:
    if len(by_rows) < 2:
        return by_rows[0] if by_rows else None
    return lambda rows: tuple([one(rows) for one in by_rows])


def _refuses(candidate: Candidate, problem: Descriptor[Any], target: Target) -> bool:
    """Whether the candidate refuses the problem at every size."""
    found = candidate.declines(problem, target)
    return bool(found) and isinstance(found, AtAnySize)


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
    """How far a candidate is from a problem: by the number of its reasons; with equal numbers, the nearer one serves a field
    and refuses a part of it."""
    return len(reasons), -max(reason.field.count(".") for reason in reasons)


def _of_step(name: str, reason: Reason) -> Reason:
    """The reason, with the step's name before the field; unchanged for the compiler, which all steps share."""
    if reason.code == COMPILER_TOO_OLD:
        return reason
    return Reason(reason.code, f"{name}.{reason.field}", reason.got, reason.allowed, reason.hint)
