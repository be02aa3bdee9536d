"""Declarations of args fields: the description of a tensor, and the operands for which a field stands, such as a list."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from opfacade.errors import Issue

if TYPE_CHECKING:
    from opfacade.core.forms import Parts


def elements(name: str, count: int) -> tuple[str, ...]:
    """The operand names of a list's elements: name_0, name_1 and so on."""
    return tuple(f"{name}_{i}" for i in range(count))


@dataclasses.dataclass(frozen=True, slots=True)
class TensorList:
    """A list of tensors, each of which is an operand; it may be shorter than `names`."""

    names: tuple[str, ...]

    def doc(self, field: str) -> str:
        return f"set by a list in {field}"

    def take(self, value: object) -> list[object] | None:
        return list(value) if isinstance(value, (list, tuple)) and len(value) <= len(self.names) else None

    def refusal(self, field: str, value: object) -> Issue | None:
        """The issue of a list that is too long."""
        if not isinstance(value, (list, tuple)):
            return None
        expected = f"a list of at most {len(self.names)} tensors"
        return Issue("OPF-A008", field, expected, f"a list of {len(value)}", kind="ShapeError")


def operand(doc: str, parts: Parts | None = None) -> Any:
    """Declares an Args field whose default is None: its description, and the operands for which it stands."""
    return dataclasses.field(default=None, metadata={"doc": doc, "parts": parts})


def add_declared(cls: Any) -> None:
    """Adds the fields that a class declares by `operand` to its docs and parts.

    dataclass creates a copy with slots, which has no declarations but already has docs and parts.
    """
    fields = {name: field.metadata for name, field in vars(cls).items() if isinstance(field, dataclasses.Field)}
    declared = {name: told for name, told in fields.items() if "doc" in told}
    if declared:
        cls.docs = MappingProxyType({**cls.docs, **{name: told["doc"] for name, told in declared.items()}})
        parts = {name: told["parts"] for name, told in declared.items() if told["parts"] is not None}
        cls.parts = MappingProxyType({**cls.parts, **parts})


def add_parts(cls: type[Any]) -> None:
    """Adds fields with descriptions for the operands of `parts` to an Args class, and makes its instances replace values by
    their tensors.

    For `__init_subclass__`, before dataclass reads the fields. The copy with slots that dataclass creates already has these
    fields.
    """
    docs = {name: parts.doc(field) for field, parts in cls.parts.items() for name in parts.names}
    cls.docs = MappingProxyType({**docs, **cls.docs})
    for name in docs:
        if name not in cls.__annotations__:
            cls.__annotations__[name] = "Tensor | None"
            setattr(cls, name, None)
    cls.__post_init__ = _spread


def _spread(args: Any) -> None:
    """A value that no parts take stays in its field, and the check of the call refuses it."""
    for field, parts in args.parts.items():
        value = getattr(args, field)
        tensors = None if value is None else parts.take(value)
        if tensors is not None:
            object.__setattr__(args, field, None)
            for name, tensor in zip(parts.names, tensors, strict=False):
                object.__setattr__(args, name, tensor)
