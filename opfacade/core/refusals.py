"""Validation errors of pydantic as issues: path of the field, expected and actual value, and a hint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel

from opfacade.base.did_you_mean import did_you_mean, nearest
from opfacade.base.short_repr import shown
from opfacade.errors import Issue

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_EXPECTED = {"extra_forbidden": "no field with this name", "missing": "a value", "tuple_type": "a list or a tuple"}
# Captures the middle of pydantic's message, between the input type and the value.
_SAID = re.compile(
    r"(?:Input should be |Value error, |\w+ should have |String should match )(.*?)(?: after validation, not \d+)?", re.DOTALL
)
_OFF = ("none", "off", "never")  # a misspelled requirement matches none of these
_QUOTED = re.compile(r"'([^']+)'")
# Path parts that pydantic adds for members of a union; they are not fields.
_MEMBER = re.compile(r"literal\[.*\]|constrained-\w+|nullable.*|function-\w+\[.*\]|int|float|bool|str|tuple\[.*\]")


def issues_of(cls: type[BaseModel], errors: Iterable[ErrorDetails]) -> list[Issue]:
    """One issue per wrong field; the errors of all members of a union about one value are merged into one issue."""
    found: dict[tuple[str, str], Issue] = {}
    listed: set[str] = set()
    for i, item in enumerate(errors):
        issue = _listing_once(_issue(cls, item), listed)
        of_union = any(_is_member(part) for part in item["loc"])
        key = (issue.argument, issue.got) if of_union else (issue.argument, str(i))
        first = found.get(key)
        found[key] = issue if first is None else replace(first, expected=f"{first.expected} or {_shorter(issue.expected)}")
    return list(found.values())


def _listing_once(issue: Issue, listed: set[str]) -> Issue:
    """Omit the names of all fields if another issue lists them already."""
    hint, _, names = issue.hint.partition("Fields: ")
    if names not in listed:
        listed.add(names)
        return issue
    return replace(issue, hint=hint.strip())


def _shorter(expected: str) -> str:
    return expected.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")


def _is_member(part: object) -> bool:
    return isinstance(part, str) and _MEMBER.fullmatch(part) is not None


def _issue(cls: type[BaseModel], item: ErrorDetails) -> Issue:
    kind, value, said = item["type"], item["input"], item.get("ctx", {})
    contradicts = kind == "contradiction"
    places = [part for part in item["loc"] if not _is_member(part)]
    path = ".".join(map(str, (*places, *([said["field"]] if contradicts and said["field"] else [])))) or cls.__name__
    got = "nothing" if kind == "missing" else shown(said["got"] if contradicts else value)
    sentence = _SAID.fullmatch(item["msg"])
    told = sentence[1] if sentence else item["msg"]
    hint = said["hint"] if contradicts else _hint(cls, kind, places, value, said)
    return Issue(code_of(kind), path, _EXPECTED.get(kind, told), got, hint, kind="DescriptorError")


def _hint(cls: type[BaseModel], kind: str, places: list[Any], value: object, said: dict[str, Any]) -> str:
    if kind == "extra_forbidden":
        model = _model_at(cls, places[:-1])
        close = did_you_mean(str(places[-1]), model.model_fields, getattr(model, "elsewhere", {}))
        return " ".join(filter(None, (close, f"Fields: {', '.join(model.model_fields)}.")))
    if kind == "literal_error":
        word, values = shown(value).strip("'"), _QUOTED.findall(str(said.get("expected", "")))
        meant = nearest(word, [known for known in values if known not in _OFF or known == word.lower()])
        return "" if meant is None else f"Use {meant!r}."
    hints: Mapping[Any, str] = getattr(_model_at(cls, places[:-1]), "hints", {})
    if kind == "tuple_type" and isinstance(value, str):
        return hints.get(places[-1]) or f"Use [{value!r}]."
    return hints.get(places[-1], "") if places and kind in ("model_attributes_type", "missing") else ""


def _model_at(cls: type[BaseModel], places: Iterable[Any]) -> type[BaseModel]:
    """The model at the end of a path, as far as the path names models."""
    for part in places:
        field = cls.model_fields.get(part) if isinstance(part, str) else None
        cls = next(_models(field.annotation), cls) if field is not None else cls
    return cls


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def code_of(kind: str) -> str:
    """One code per condition: D001 wrong type, D002 out of range, D003 unknown field, D004 missing, D005 contradiction, D006
    not strict JSON, D007 change of a frozen value, D008 positional argument."""
    if kind == "extra_forbidden":
        return "OPF-D003"
    if kind == "missing":
        return "OPF-D004"
    if kind in ("value_error", "contradiction"):
        return "OPF-D005"
    if kind in ("finite_number", "literal_error") or kind.startswith(("greater_than", "less_than", "string_pattern", "too_")):
        return "OPF-D002"
    return "OPF-D001"
