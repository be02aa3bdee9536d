"""The form of a fold: its program without the sizes of its axes. Folds that differ only in sizes share a form."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast

from opfacade.core.answer_cache import AnswerCache
from opfacade.core.descriptor import when_forgotten


class Form:
    """Identifies the programs of one form. example: the first of them; its sizes are irrelevant."""

    __slots__ = ("example",)

    def __init__(self, example: Shaped) -> None:
        self.example = example


class Shaped(Protocol):
    """A program over axes with sizes."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def form(self) -> Form: ...


_P = ParamSpec("_P")
T = TypeVar("T")
ProgramT = TypeVar("ProgramT", bound=Shaped)
_forms: AnswerCache[Form] = AnswerCache()


def form_of(program: Shaped) -> Form:
    facts = tuple(value for name, value in program.__dict__.items() if name != "shape")
    return _forms.get((type(program), len(program.shape), *facts), lambda: Form(program))


def cached_by_form(function: Callable[Concatenate[ProgramT, _P], T]) -> Callable[Concatenate[ProgramT, _P], T]:
    """Caches a function of a program that does not use the program's sizes."""

    @lru_cache(maxsize=1024)
    def of_form(form: Form, *args: Hashable) -> T:
        ask: Callable[..., T] = function
        return ask(form.example, *args)

    def of(program: ProgramT, *args: Hashable) -> T:
        return of_form(program.form, *args)

    when_forgotten(of_form.cache_clear)
    return cast("Callable[Concatenate[ProgramT, _P], T]", wraps(function)(of))
