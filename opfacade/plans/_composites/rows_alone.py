"""Answers of a candidate to problems that differ in their rows alone: `Candidate.by_rows` finds an earlier answer."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from opfacade.core.candidate import Candidate, Offer
from opfacade.core.descriptor import Descriptor
from opfacade.core.target import Target

ROWS = "total_num_rows"
_MOST = 1024
K = TypeVar("K")
T = TypeVar("T")


class _Known(NamedTuple):
    """The answers to problems that differ in their rows alone, by the results of `by_rows`."""

    by_rows: Callable[[int], Hashable] | None
    made: dict[Hashable, Offer]


_NOTHING = _Known(None, {})


def offer(candidate: Candidate, problem: Descriptor[Any], target: Target) -> Offer:
    """The reasons against a candidate; without any, its SKU and workspace."""
    reasons = tuple(candidate.declines(problem, target))
    return (reasons, None, None) if reasons else (reasons, candidate.sku(problem, target), candidate.workspace(problem, target))


def with_rows(candidate: Candidate, by_rows: Callable[[Any, Target], Callable[[int], Hashable] | None]) -> Candidate:
    """The candidate with `by_rows`, and with `sized` from it."""
    plain = replace(candidate, by_rows=by_rows)
    return replace(plain, sized=lambda problem, target: _sized(plain, by_rows, target))


def _sized(
    candidate: Candidate, by_rows: Callable[[Any, Target], Callable[[int], Hashable] | None], target: Target
) -> Callable[[Any], Offer]:
    known_of = by_other_sizes(candidate.descriptor, ROWS, lambda problem: _Known(by_rows(problem, target), {}))

    def sized(problem: Descriptor[Any]) -> Offer:
        rows = problem.__dict__[ROWS]
        # Copies of no rows are empty, so `by_rows` needs a problem with rows.
        of_rows, made = known_of(problem) if rows else _NOTHING
        if of_rows is None:
            return offer(candidate, problem, target)
        said = of_rows(rows)
        answer = made.get(said)
        if answer is None:
            answer = offer(candidate, problem, target)
            bounded(made, said, answer)
        return answer

    return sized


def by_other_sizes(kind: type[Descriptor[Any]], rows: str, make: Callable[[Any], T]) -> Callable[[Descriptor[Any]], T]:
    """Caches a function of problems with the same `refused_alike` by all sizes except the number of rows."""
    others = sorted(kind.sizes - {rows})
    sizes_of = operator.itemgetter(*others) if others else lambda fields: ()
    known: dict[object, T] = {}

    def of(problem: Descriptor[Any]) -> T:
        key = sizes_of(problem.__dict__)
        found = known.get(key)
        if found is None:
            found = make(problem)
            bounded(known, key, found)
        return found

    return of


def bounded(known: dict[K, T], key: K, value: T) -> None:
    """Adds an entry, and first clears a mapping that is full."""
    if len(known) >= _MOST:
        known.clear()
    known[key] = value
