"""Reasons against a candidate at every size: a selection of a new size does not ask that candidate again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar, cast

from opfacade.core.candidate import Reason
from opfacade.core.descriptor import Descriptor, cached_by_specialization
from opfacade.core.target import Target

D = TypeVar("D", bound=Descriptor[Any])


class AtAnySize(tuple[Reason, ...]):
    """Reasons, or none, that hold for all problems with one `refused_alike`."""

    __slots__ = ()


def at_any_size(reasons: Callable[[D, Target], Iterable[Reason]]) -> Callable[[D, Target], AtAnySize]:
    """Caches reasons by specialization key. They must not depend on sizes."""

    @wraps(reasons)
    def found(problem: D, target: Target) -> AtAnySize:
        return AtAnySize(reasons(problem, target))

    return cast("Callable[[D, Target], AtAnySize]", cached_by_specialization(found))
