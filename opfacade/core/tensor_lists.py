"""Declarations of args fields: the description of a tensor, and for a list of tensors the operands of its elements."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any


def elements(name: str, count: int) -> tuple[str, ...]:
    """The operand names of a list's elements: name_0, name_1 and so on."""
    return tuple(f"{name}_{i}" for i in range(count))


def operand(doc: str, elements: tuple[str, ...] = ()) -> Any:
    """Declares an Args field whose default is None: its description, and the operands of a list's elements."""
    return dataclasses.field(default=None, metadata={"doc": doc, "elements": elements})


def add_declared(cls: Any) -> None:
    """Adds the fields that a class declares by `operand` to its docs and lists.

    dataclass creates a copy with slots, which has no declarations but already has docs and lists.
    """
    fields = {name: field.metadata for name, field in vars(cls).items() if isinstance(field, dataclasses.Field)}
    declared = {name: told for name, told in fields.items() if "doc" in told}
    if declared:
        cls.docs = MappingProxyType({**cls.docs, **{name: told["doc"] for name, told in declared.items()}})
        lists = {name: told["elements"] for name, told in declared.items() if told["elements"]}
        cls.lists = MappingProxyType({**cls.lists, **lists})


def add_elements(cls: Any) -> None:
    """Adds fields with descriptions for list elements to an Args class, and makes its instances spread lists over them.

    For `__init_subclass__`, before dataclass reads the fields. The copy with slots that dataclass creates already has these
    fields.
    """
    docs = {element: f"set by a list in {name}" for name, some in cls.lists.items() for element in some}
    cls.docs = MappingProxyType({**docs, **cls.docs})
    for element in docs:
        if element not in cls.__annotations__:
            cls.__annotations__[element] = "Tensor | None"
            setattr(cls, element, None)
    cls.__post_init__ = _spread


def _spread(args: Any) -> None:
    """A list that is too long stays in its field, and the check of the call refuses it."""
    for name, operands in args.lists.items():
        given = getattr(args, name)
        if isinstance(given, (list, tuple)) and len(given) <= len(operands):
            object.__setattr__(args, name, None)
            for operand, tensor in zip(operands, given, strict=False):
                object.__setattr__(args, operand, tensor)
