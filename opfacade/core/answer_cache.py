"""Caches answers that depend only on a part of a descriptor, with that part as the key: all other sizes share one answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Concatenate, Generic, ParamSpec, TypeVar, cast

from opfacade.core.descriptor import when_forgotten

_MAX_ANSWERS = 1024
_P = ParamSpec("_P")
T = TypeVar("T")
D = TypeVar("D")


class AnswerCache(Generic[T]):
    """A bounded cache. It is cleared when it is full, and whenever the specialization keys are cleared, because its keys may"""

    def __init__(self) -> None:
        self.known: dict[Hashable, T] = {}
        when_forgotten(self.known.clear)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        try:
            return self.known[key]
        except KeyError:
            found = make()
        if len(self.known) >= _MAX_ANSWERS:
            self.known.clear()
        return self.known.setdefault(key, found)


def cached_by(
    key: Callable[Concatenate[D, _P], Hashable], function: Callable[Concatenate[D, _P], T]
) -> Callable[Concatenate[D, _P], T]:
    """Cache a function of a descriptor under `key(*arguments)`. An answer whose key is None is not cached."""
    cache: AnswerCache[T] = AnswerCache()

    def of(descriptor: D, *args: _P.args, **kwargs: _P.kwargs) -> T:
        known = key(descriptor, *args, **kwargs)
        if known is None:
            return function(descriptor, *args, **kwargs)
        try:
            return cache.known[known]
        except KeyError:
            return cache.get(known, lambda: function(descriptor, *args, **kwargs))

    return cast("Callable[Concatenate[D, _P], T]", of)
