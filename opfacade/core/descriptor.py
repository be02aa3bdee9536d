"""Descriptor: the typed, validated description of one problem. Pure data: no tensor, no device."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache, wraps
from inspect import get_annotations
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, cast

from pydantic import Field, SerializationInfo, SerializerFunctionWrapHandler, model_serializer, model_validator

from opfacade.core.construction import Spelled
from opfacade.core.elsewhere import OPERANDS
from opfacade.core.forms import Operand, Parts, expanded, too_large
from opfacade.core.model import INT64_MAX, Version, Written, contradiction
from opfacade.core.operands import TensorSpec, is_finite, split_rows, valid_count
from opfacade.core.request_tables import RequestTables
from opfacade.core.tensor_lists import add_declared, add_parts

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self


class Setting(NamedTuple):
    """A descriptor field that decides whether an operand exists: its values with the operand, and its values without it."""

    field: str
    present: Sequence[object]
    absent: Sequence[object] = ()


class Args(metaclass=Spelled):
    """Base of every bundle of tensors: a frozen, slotted, keyword-only dataclass whose fields are the operands' names.

    docs: the description of each field. parts: fields that stand for several operands, such as a list of tensors; these are
    fields too. Both include the fields that are declared by `operand`.
    """

    __slots__ = ("__weakref__",)
    elsewhere: ClassVar[Mapping[str, str]] = OPERANDS  # names of its operands in other libraries
    docs: ClassVar[Mapping[str, str]] = MappingProxyType({})  # description by field
    settings: ClassVar[Mapping[str, Setting]] = MappingProxyType({})  # fields that decide which operands exist
    parts: ClassVar[Mapping[str, Parts]] = MappingProxyType({})

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Lists the fields in the docstring, once: dataclass creates a class with slots twice."""
        super().__init_subclass__(**kwargs)
        add_declared(cls)
        if cls.parts:
            add_parts(cls)
        known, text = [name for name in get_annotations(cls) if name in cls.docs], cls.__doc__ or ""
        if known and "Fields:" not in text:
            lines = "".join(f"\n    {name}: {cls.docs[name]}." for name in known)
            cls.__doc__ = f"{text or 'The tensors of one call.'}\n\nFields:{lines}\n"


ArgsT = TypeVar("ArgsT", bound=Args)


class SplitFields(NamedTuple):
    """names: sorted names of the size fields, which are written as they are; sizes_of: a getter of their values. others_of: a
    getter of all other fields, if the specialization key has a shape; otherwise None."""

    names: Sequence[str]
    sizes_of: Callable[[dict[str, Any]], tuple[Any, ...]]
    others_of: Callable[[dict[str, Any]], tuple[Any, ...]] | None


class SpecializationKey:
    """Specialization key: shared by all descriptors that differ only in sizes. example: the first descriptor with this key.
    text, more_of, split: see plan_handles."""

    __slots__ = ("example", "more_of", "split", "text")

    def __init__(self, example: Descriptor[Any]) -> None:
        self.example = example
        self.split: SplitFields | None = None
        self.text: str | None = None
        self.more_of: Callable[[dict[str, Any]], tuple[Any, ...]] | None = None


class Descriptor(Written, Generic[ArgsT]):
    """Base of all descriptors.

    A subclass declares its fields, `op` (the name in SKUs and messages), `category` (the first word of its SKU ids), and
    `operands()`: shape, dtype and role of each tensor, from which argument checks, random inputs and byte counts follow.
    `args_type` is the parameter of its base; an args field that `operands()` omits must be None. `error_models`: ids of the
    error bounds that its kernels may guarantee, strictest first. `later`: fields added after the first version; the JSON omits
    them at their default, so that old texts and digests stay valid. `sizes`: dynamic dimensions, which are not compiled into a
    kernel; descriptors that differ only in sizes have the same specialization key.
    Problems share a measurement of `tune` if sizes and `tuning_rounds` agree after rounding up to a power of two.
    `tuning_ignores` (fields that do not change the time) are not compared, and of `tuning_flags` only the sign is. `owners`:
    the indptr of an operand's rows; rows past its last entry belong to no request. The hints name the fields to change if no
    kernel without a workspace, or no batch invariant kernel, exists.
    """

    __slots__ = ("_operands", "_specialization")
    _specialization: ClassVar[SpecializationKey | None]  # None: not computed yet
    _operands: ClassVar[Mapping[str, TensorSpec]]

    op: str
    args_type: ClassVar[type[Args]]
    category: ClassVar[str]
    error_models: ClassVar[tuple[str, ...]]
    later: ClassVar[frozenset[str]] = frozenset()
    tuning_rounds: ClassVar[frozenset[str]] = frozenset()
    tuning_ignores: ClassVar[frozenset[str]] = frozenset()
    tuning_flags: ClassVar[frozenset[str]] = frozenset()
    owners: ClassVar[Mapping[str, str]] = MappingProxyType({})
    workspace_hint: ClassVar[str] = ""
    invariance_hint: ClassVar[str] = ""
    schema_version: Version = Field(default=1, description="Version of the JSON form.")

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for given in cls.__pydantic_generic_metadata__["args"]:
            if isinstance(given, type) and issubclass(given, Args):
                cls.args_type = given

    def operands(self) -> Mapping[str, Operand]:
        raise NotImplementedError

    @classmethod
    def family(cls) -> str:
        """The family name, which all files of this operator have in every layer."""
        return cls.__module__.rpartition(".")[2]

    def wrong_values(self, name: str, args: Any) -> tuple[Tensor, str] | None:
        """The elements that validation level full refuses: (mask of an operand's elements, expected values).

        None: the operand is not checked. By default, valid rows of requests of a floating point input must satisfy its spec
        (`finite`, `least`, `marked_by`), and an index operand must be rising if its spec says `rising`.
        """
        spec, tensor = operands_of(self)[name], getattr(args, name)
        contents = spec.contents
        if contents.rising:
            return tensor.diff(prepend=tensor[:1]) < 0, "an entry not below the one before"
        if spec.role not in ("in", "inout") or spec.paged is not None or not contents.finite or not tensor.is_floating_point():
            return None
        wrong: Tensor = ~is_finite(tensor)
        if contents.least is not None:
            wrong |= ~(tensor >= contents.least)
        if contents.marked_by:
            wrong &= (getattr(args, contents.marked_by) != -math.inf)[..., None]
        if name in self.owners:
            wrong[int(getattr(args, self.owners[name])[-1]) :] = False
        if spec.valid_rows:
            count = valid_count(getattr(args, spec.valid_rows), tensor.shape[spec.valid_axis])
            split_rows(spec, wrong, count)[1].fill_(False)
        return wrong, "finite values" if contents.least is None else f"finite values of at least {contents.least:.3g}"

    def request_tables(self) -> RequestTables | None:
        """The operands that assign rows, keys and pages to requests; None for an op without requests."""
        return None

    def refuse_requests(self, args: Any, requests: Sequence[tuple[int, int]]) -> None:
        """Raise IndexDataError for requests that the reference and validation level full refuse although tables and values are
        valid.

        requests: (rows, tokens) of each request, from valid tables. The default raises nothing.
        """

    def on_pages(self, pages: int) -> Self:
        """The same problem, with the same bounds, on pools of `num_pages` pages. Defined by ops whose `request_tables` has
        pages."""
        return self

    @property
    def specialization(self) -> SpecializationKey:
        """Specialization key: shared by all descriptors that differ only in sizes."""
        try:
            # bypasses pydantic's __getattr__, which is slow for missing names
            found: SpecializationKey | None = object.__getattribute__(self, "_specialization")
        except AttributeError:  # slots are not fields, and copies do not have them
            found = None
        if found is None:
            found = _kind_of(self)
            object.__setattr__(self, "_specialization", found)
        return found

    @property
    def refused_alike(self) -> Hashable:
        """Identifies problems against which a candidate has the same reasons, if these are `AtAnySize`."""
        return self.specialization

    @model_validator(mode="after")
    def _addressable(self) -> Any:
        object.__setattr__(self, "_operands", _operands_of(self))
        object.__setattr__(self, "_specialization", None)
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, fields: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        at_default = {name for name in self.later if getattr(self, name) == type(self).model_fields[name].default}
        return {name: value for name, value in fields(self).items() if name not in at_default}


_MAX_KINDS = 1024
_kinds: dict[tuple[object, ...], SpecializationKey] = {}
_forget: list[Callable[[], None]] = []  # the `clear` of each cache


def when_forgotten(forget: Callable[[], None]) -> None:
    """Registers `forget` to be called by `forget_specializations`: for a cache whose keys may contain specialization keys."""
    _forget.append(forget)


def forget_specializations() -> None:
    """Clear `cached_by_specialization` and `memoize_last`, and every descriptor's specialization key."""
    _kinds.clear()
    for forget in _forget:
        forget()


def _kind_of(descriptor: Descriptor[Any]) -> SpecializationKey:
    facts = (type(descriptor), *descriptor.without_sizes())
    found = _kinds.get(facts)
    if found is None:
        if len(_kinds) >= _MAX_KINDS:
            forget_specializations()
        found = _kinds.setdefault(facts, SpecializationKey(descriptor))
    return found


DescriptorT = TypeVar("DescriptorT", bound=Descriptor[Any])
_P = ParamSpec("_P")
_T = TypeVar("_T")


def cached_by_specialization(
    function: Callable[Concatenate[DescriptorT, _P], _T],
) -> Callable[Concatenate[DescriptorT, _P], _T]:
    """Cache a function of a descriptor by specialization key. The function must not depend on sizes.

    So a serving step with a new batch size gets the cached kernel or refusal.
    """

    @lru_cache(maxsize=_MAX_KINDS)
    def of_kind(kind: SpecializationKey, *args: object) -> _T:
        ask: Callable[..., _T] = function
        return ask(kind.example, *args)

    def of(descriptor: DescriptorT, *args: object) -> _T:
        try:
            kind: SpecializationKey | None = object.__getattribute__(descriptor, "_specialization")
        except AttributeError:
            kind = None
        return of_kind(kind or descriptor.specialization, *args)

    _forget.append(of_kind.cache_clear)
    return cast("Callable[Concatenate[DescriptorT, _P], _T]", wraps(function)(of))


def memoize_last(function: Callable[Concatenate[DescriptorT, _P], _T]) -> Callable[Concatenate[DescriptorT, _P], _T]:
    """Cache the last result, because the steps of one selection repeat the same call."""
    last: tuple[object, tuple[Any, ...], Any] = None, (), None

    def forget() -> None:
        nonlocal last
        last = None, (), None

    def of(descriptor: DescriptorT, *args: object) -> _T:
        nonlocal last
        known = last  # read once, because another thread may replace it
        if known[0] is not descriptor or known[1] != args:
            ask: Callable[..., _T] = function
            last = known = descriptor, args, ask(descriptor, *args)
        found: _T = known[2]
        return found

    _forget.append(forget)
    return cast("Callable[Concatenate[DescriptorT, _P], _T]", wraps(function)(of))


def operands_of(descriptor: Descriptor[Any]) -> Mapping[str, TensorSpec]:
    """`descriptor.operands()` with the tensors of forms, computed once per descriptor value."""
    try:
        found: Mapping[str, TensorSpec] = object.__getattribute__(descriptor, "_operands")
    except AttributeError:  # not validated
        found = _operands_of(descriptor)
    return found


@lru_cache(maxsize=4096)
def _operands_of(descriptor: Descriptor[Any]) -> Mapping[str, TensorSpec]:
    """Checks that 64-bit signed byte offsets reach all elements of each operand."""
    operands = expanded(descriptor.operands())
    for name, spec in operands.items():
        if spec.nbytes > INT64_MAX:
            raise contradiction(*too_large(type(descriptor).model_fields, name, spec))
    return MappingProxyType(operands)


def inout(descriptor: Descriptor[Any]) -> tuple[str, ...]:
    """The operands that a run reads and overwrites."""
    return tuple(name for name, spec in operands_of(descriptor).items() if spec.role == "inout")
