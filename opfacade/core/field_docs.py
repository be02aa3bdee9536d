"""The docstring of a model with its fields: type, default and description, as `help` shows them."""

from __future__ import annotations

import inspect
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_TITLE = "Fields:"


class DocWithFields:
    """The value of `__doc__` of a class. The text is generated at the first read, not at import."""

    __slots__ = ("text",)

    def __init__(self, text: str | None) -> None:
        self.text = text

    def __get__(self, instance: object, owner: type[BaseModel]) -> str:
        lines = "".join(f"\n    {name}: {_told(field)}" for name, field in owner.model_fields.items())
        return "\n\n".join(filter(None, (inspect.cleandoc(self.text or ""), lines and f"{_TITLE}{lines}\n")))


def without_fields(doc: str) -> str:
    """The docstring without its list of fields, which a JSON schema describes itself."""
    return "" if doc.startswith(_TITLE) else doc.partition(f"\n\n{_TITLE}")[0]


def _told(field: FieldInfo) -> str:
    default = "required" if field.is_required() else f"default {field.default!r}"
    return f"{_type(field.annotation)}, {default}. {field.description or ''}".rstrip()


def _type(annotation: object) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(parts[0])
    if origin is Literal:
        return " | ".join(map(repr, parts))
    if origin in (Union, UnionType):
        return " | ".join(map(_type, parts))
    if annotation in (None, NoneType, Ellipsis):
        return "..." if annotation is Ellipsis else "None"
    name = str(getattr(origin or annotation, "__name__", annotation))
    return f"{name}[{', '.join(map(_type, parts))}]" if parts else name
