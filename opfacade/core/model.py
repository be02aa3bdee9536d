"""The base of all models that users write: frozen, strict, without extra fields, and with OpfacadeErrors."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from opfacade.base import strict_json
from opfacade.base.short_repr import shown
from opfacade.core.dtypes import named
from opfacade.core.elsewhere import FIELDS
from opfacade.core.field_docs import DocWithFields, without_fields
from opfacade.core.proof import ATOMS, Proof, proof_of
from opfacade.core.refusals import issues_of
from opfacade.errors import DescriptorError, FrozenError, Issue, OpfacadeError, told

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
F32_MAX = (2 - 2.0**-23) * 2.0**127
F32_LEAST = 2.0**-126  # the smallest normal number

Self = TypeVar("Self", bound="Model")


def as_index(value: object) -> object:
    """Accepts integers by Python's rule for an index (so numpy integers too), but not bool."""
    if type(value) is int or isinstance(value, (bool, str, float)) or not hasattr(value, "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def _positive_zero(value: float) -> float:
    """Replaces -0.0 by 0.0: they are equal but print differently, and equal values must have equal JSON."""
    return value + 0.0


def _cap(value: float) -> float:
    """A cap is an f32 divisor on the device: a subnormal cap may be flushed to 0 there, and 0 / 0 is NaN."""
    if 0.0 < value < F32_LEAST:
        expected = "0 or at least 2^-126, because kernels divide by it in f32, where a smaller one may be 0 and give NaN"
        raise PydanticCustomError("too_small", "{expected}", {"expected": expected})
    return value


def _whole(value: object) -> object:
    """Checks types too, because pydantic's Literal compares by equality: True and 1.0 would pass as 1."""
    return value if type(value) is int or isinstance(value, str) else shown(value)


def _listed(value: object) -> object:
    return tuple(value) if type(value) is list else value


FromList = BeforeValidator(_listed)  # annotation of a tuple field that also accepts a list
Integer = Annotated[int, BeforeValidator(as_index)]
Count = Annotated[int, BeforeValidator(as_index), Field(ge=0, le=INT32_MAX)]
Bytes = Annotated[int, BeforeValidator(as_index), Field(ge=0, le=INT64_MAX)]
Size = Annotated[int, BeforeValidator(as_index), Field(ge=1, le=INT32_MAX)]
Real = Annotated[float, AfterValidator(_positive_zero)]
Single = Annotated[Real, Field(ge=-F32_MAX, le=F32_MAX)]  # finite as f32 too
SoftCap = Annotated[Single, Field(ge=0.0), AfterValidator(_cap)]
Version = Annotated[Literal[1], BeforeValidator(_whole)]


def contradiction(field: str, expected: str, got: object, hint: str = "") -> ValueError:
    """The error of a model validator for a field that contradicts the others; `field`: a path, or "" for the model itself."""
    return PydanticCustomError("contradiction", "{expected}", {"field": field, "expected": expected, "got": got, "hint": hint})


def _wrap(cls: type[BaseModel], error: ValidationError) -> OpfacadeError:
    """The error for users: the path, expected value and actual value of every wrong field."""
    issues = issues_of(cls, error.errors(include_url=False))
    return DescriptorError(told(cls.__name__, issues), code=issues[0].code, op=cls.__name__, stage="descriptor", issues=issues)


def not_strict(name: str, why: ValueError) -> DescriptorError:
    """The error for JSON that `strict_json` refuses."""
    issue = Issue("OPF-D006", "text", "strict JSON", str(why)[:200], kind="DescriptorError")
    return _wrong(DescriptorError, name, issue)


def _wrong(kind: type[DescriptorError], name: str, issue: Issue) -> DescriptorError:
    return kind(told(name, [issue]), code=issue.code, op=name, stage="descriptor", issues=[issue], hint=issue.hint)


def _by_place(cls: type[BaseModel], count: int) -> DescriptorError:
    hint = f"Write {cls.__name__}({', '.join(f'{name}=...' for name in list(cls.model_fields)[:3])})."
    issue = Issue("OPF-D008", "arguments", "keywords only", f"{count} positional", hint, kind="DescriptorError")
    return _wrong(DescriptorError, cls.__name__, issue)


if TYPE_CHECKING:
    from pydantic_core import CoreSchema

    _Base = BaseModel
else:

    class _Boundary(type(BaseModel)):
        """Raises DescriptorError where pydantic raises ValidationError.

        A metaclass, because overriding __init__ would make pydantic call it for nested models too and lose the path.
        """

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if args:
                raise _by_place(cls, len(args))
            try:
                return _proven(super().__call__(**kwargs))
            except ValidationError as error:
                raise _wrap(cls, error) from error

    class _Base(BaseModel, metaclass=_Boundary):
        pass


class Model(_Base):
    """Frozen, strict, closed. Hashable; equal values have equal JSON."""

    __slots__ = ("_hash", "_proof")  # not a field, and not copied or pickled: unvalidated values have no proof
    _hash: ClassVar[int]
    _proof: ClassVar[Proof]
    sizes: ClassVar[frozenset[str]] = frozenset()
    elsewhere: ClassVar[Mapping[str, str]] = FIELDS  # names of its fields in other libraries
    off: ClassVar[Mapping[str, object]] = MappingProxyType({})  # fields that None turns off: the value that None is replaced by
    element_types: ClassVar[frozenset[str]] = frozenset()  # element type fields whose names do not end in dtype
    hints: ClassVar[Mapping[str, str]] = MappingProxyType({})  # hints for fields

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        revalidate_instances="always",
        validate_default=True,
        protected_namespaces=(),
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.__doc__ = DocWithFields(cls.__doc__)  # type: ignore[assignment]

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        found = handler(schema)
        own = handler.resolve_ref_schema(found)
        if own.pop("description", ""):
            own |= {"description": text} if (text := without_fields(cls.__doc__ or "")) else {}
        return found

    @classmethod
    def model_validate(cls: type[Self], obj: Any, **kwargs: Any) -> Self:
        try:
            return _proven(super().model_validate(obj, **kwargs))
        except ValidationError as error:
            raise _wrap(cls, error) from error

    @classmethod
    def model_validate_json(cls: type[Self], json_data: str | bytes | bytearray, **kwargs: Any) -> Self:
        """The value of a JSON text. Raises DescriptorError for invalid JSON and for a duplicate name in an object
        (OPF-D006)."""
        try:
            if isinstance(json_data, (str, bytes, bytearray)):
                strict_json.loads(json_data)  # pydantic would take the last of duplicate names
        except ValueError as error:
            raise not_strict(cls.__name__, error) from error
        try:
            return _proven(super().model_validate_json(json_data, **kwargs))
        except ValidationError as error:
            raise _wrap(cls, error) from error

    def __setattr__(self, name: str, value: object) -> None:
        """Raises FrozenError: a model must not change after it is validated and hashed."""
        raise self._frozen(name)

    def __delattr__(self, name: str) -> None:
        raise self._frozen(name)

    def _frozen(self, name: str) -> DescriptorError:
        hint = f"Make a changed copy: {type(self).__name__}(**(value.model_dump() | {{{name!r}: ...}}))."
        issue = Issue("OPF-D007", name, "no assignment, because the value is frozen", "one", hint, kind="FrozenError")
        return _wrong(FrozenError, type(self).__name__, issue)

    def without_sizes(self) -> tuple[object, ...]:
        """Field values without the dynamic sizes, recursively; equal values mean the same specialization."""
        values = _getter_without_sizes(type(self))(self.__dict__)
        kinds = {*map(type, values)}
        if ATOMS.issuperset(kinds) or not any(map(_is_sized, kinds - ATOMS)):
            return values
        return tuple([value if type(value) in ATOMS else _without_sizes(value) for value in values])

    def __eq__(self, other: object) -> bool:
        """Like pydantic's for a model without private and extra fields, but three times as fast."""
        return self.__dict__ == other.__dict__ if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        """Computed once: a selection hashes a descriptor several times, and a program is a tree of models."""
        try:
            found: int = object.__getattribute__(self, "_hash")
        except AttributeError:
            fields = self.__dict__
            found = hash(tuple([fields.get(name) for name in type(self).model_fields]))
            object.__setattr__(self, "_hash", found)
        return found

    def revalidated(self: Self) -> Self:
        """This value, validated again, because model_construct, model_copy and pickle bypass validation.

        Skipped if it still holds the identical (immutable) objects that passed.
        """
        proof: Proof | None = getattr(self, "_proof", None)
        if proof is not None and proof.holds_for(self):
            return self
        return type(self).model_validate(dict(self.__dict__))

    def canonical_json(self) -> str:
        """The canonical JSON of this value: sorted keys, no spaces."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hex: the same in every process and on every machine."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()


@lru_cache(maxsize=256)
def _getter_without_sizes(kind: type[Model]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    return operator.itemgetter(*(name for name in kind.model_fields if name not in kind.sizes))


@lru_cache(maxsize=1024)
def _is_sized(kind: type[object]) -> bool:
    return issubclass(kind, Model) and bool(kind.sizes)


def _without_sizes(value: object) -> object:
    return value.without_sizes() if isinstance(value, Model) and value.sizes else value


def _proven(validated: Self) -> Self:
    """Attach a snapshot of the validated fields (by identity), so that `revalidated()` is O(fields)."""
    object.__setattr__(validated, "_proof", proof_of(validated, Model))
    return validated


class Written(Model):
    """A model that also accepts the notation of other libraries.

    Not the base of every model: its `before` validator makes pydantic treat JSON as Python input, where a list is not a tuple
    (FromList).
    """

    @model_validator(mode="before")
    @classmethod
    def _as_others_write(cls, given: object) -> object:
        """Replaces torch dtypes by our names, and None by the value that turns a field off."""
        if type(given) is not dict:
            return given
        meant = {name: cls.off[name] for name, value in given.items() if value is None and name in cls.off}
        asked = [name for name, value in given.items() if type(value) not in ATOMS and cls._is_element_type(str(name))]
        types = {name: named(given[name]) for name in asked}
        return given | meant | types if meant or types else given

    @classmethod
    def _is_element_type(cls, name: str) -> bool:
        return name[-5:] == "dtype" or name in cls.element_types
