"""Errors of invalid constructor calls: public dataclasses raise an OpfacadeError that names every wrong argument."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from opfacade.base.did_you_mean import did_you_mean
from opfacade.errors import FrozenError, Issue, OpfacadeError, from_issues

if TYPE_CHECKING:
    Spelled = type  # a visible __call__ would hide the dataclasses' signatures from type checkers
else:

    class Spelled(type):
        """Turns the TypeError for a wrong, missing or positional argument into issues; other TypeErrors pass through."""

        missing_hint: ClassVar[str] = ""
        elsewhere: ClassVar[Mapping[str, str]] = MappingProxyType({})  # argument names in other libraries

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().__call__(*args, **kwargs)
            except TypeError as error:
                wrong = None if isinstance(error, OpfacadeError) else _wrong_call(cls, args, kwargs)
                if wrong is None:
                    raise
                raise wrong from None


def not_called(name: str) -> OpfacadeError:
    """The error for a constructor call of a plan, which only `select` makes."""
    hint = f"Write {name}.select(descriptor)."
    issue = Issue("OPF-S035", name, "no call, because plans are created by select", "one", hint, kind="ArgumentTypeError")
    return from_issues(name, "select", [issue])


def immutable(name: str, what: str) -> FrozenError:
    """The error for a change of a plan, such as "set sku"."""
    message = f"{name}: a plan is immutable: cannot {what}. Select another one. [OPF-D007]"
    return FrozenError(message, op=name, stage="plan")


def _wrong_call(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpfacadeError | None:
    fields = {field.name: field for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
    by_place = [name for name, field in fields.items() if not field.kw_only]
    issues = []
    if len(args) > len(by_place):
        most = f"at most {len(by_place)} positional" if by_place else "keywords only"
        issues.append(_issue("OPF-A061", "arguments", most, f"{len(args)} positional"))
    for name in [name for name in kwargs if name not in fields]:
        hint = " ".join(filter(None, (did_you_mean(name, fields, cls.elsewhere), f"Names: {', '.join(fields)}.")))
        issues.append(_issue("OPF-A060", name, "no argument with this name", "one", hint))
    given = {*kwargs, *by_place[: len(args)]}
    for name, field in fields.items():
        if name not in given and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            issues.append(_issue("OPF-A062", name, "a value", "nothing", cls.missing_hint))
    return from_issues(cls.__name__, "", issues) if issues else None


def _issue(code: str, name: str, expected: str, got: str, hint: str = "") -> Issue:
    return Issue(code, name, expected, got, hint, kind="ArgumentTypeError")


def filler(kind: type, names: Sequence[str]) -> Callable[[object, Sequence[object]], None]:
    """A function that writes these slots of a frozen value, in a quarter of the time that object.__setattr__ takes."""
    setters = [getattr(kind, name).__set__ for name in names]

    def fill(value: object, facts: Sequence[object]) -> None:
        for write, fact in zip(setters, facts, strict=True):
            write(value, fact)

    return fill
