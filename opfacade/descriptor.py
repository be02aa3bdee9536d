"""Descriptor: the typed, validated description of one problem. Pure data: no tensor, no device."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from opfacade.model import INT64_MAX, Model
from opfacade.operands import TensorSpec, nbytes


class Args:
    """Base of every bundle of tensors: a frozen, slotted, keyword-only dataclass whose fields are the operands' names."""

    __slots__ = ("__weakref__",)


ArgsT = TypeVar("ArgsT", bound=Args)


class Descriptor(Model, Generic[ArgsT]):
    """Base of all descriptors.

    A subclass says its fields, `op` (the name in SKUs and messages), `args_type`, and `operands()`: shape, dtype and
    role of each tensor, from which argument checks, random inputs and byte counts all follow. An args field that
    `operands()` does not name must be None. `later` names the fields that came after the first version: at their
    default they are left out of the JSON, so that what was written before has the same text and digest now.
    """

    op: str
    args_type: ClassVar[type[Args]]
    category: ClassVar[str] = "attention"
    later: ClassVar[frozenset[str]] = frozenset()
    schema_version: Literal[1] = 1

    def operands(self) -> dict[str, TensorSpec]:
        raise NotImplementedError

    @classmethod
    def family(cls) -> str:
        """The word that names this operator's files in every layer."""
        return cls.__module__.rpartition(".")[2]

    @model_validator(mode="after")
    def _addressable(self) -> Any:
        operands_of(self)
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        unsaid = {name for name in self.later if getattr(self, name) == type(self).model_fields[name].default}
        return {name: value for name, value in fields(self).items() if name not in unsaid}


@lru_cache(maxsize=4096)
def operands_of(descriptor: Descriptor[Any]) -> Mapping[str, TensorSpec]:
    """`descriptor.operands()`, made once a value. No operand may have more bytes than 64-bit signed offsets reach."""
    operands = descriptor.operands()
    for name, spec in operands.items():
        if nbytes([spec]) > INT64_MAX:
            raise ValueError(f"{name} has more than 2^63 - 1 bytes; its sizes are {[d.size for d in spec.shape]}")
    return MappingProxyType(operands)
