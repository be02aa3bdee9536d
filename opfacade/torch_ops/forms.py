"""The forms of an op for torch: which operands it reads and writes, and its schema.

All of this is derived from `operands()` of the op's EXAMPLES, and of variants with one flag or choice changed, so a new family
needs no code here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args, get_origin

from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.joined import GROUP, JoinedArgs
from opfacade.core.model import Model
from opfacade.core.operands import TensorSpec
from opfacade.errors import DescriptorError
from opfacade.select.registry import examples

Problem = dict[str, TensorSpec]


@dataclass(frozen=True)
class Form:
    """One set of roles of an op's operands. name: the name in torch.ops.opfacade. problems: the operands of each examined
    descriptor."""

    name: str
    kind: type[Descriptor[Any]]
    problems: tuple[Problem, ...]

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """All operands: required inputs, then outputs, then the others, each group in the order of the args."""
        names = [name for name in self.kind.args_type.__slots__ if any(name in p for p in self.problems)]
        return tuple(
            sorted(names, key=lambda name: (name not in self.required, name in self.required or name not in self.written))
        )

    @cached_property
    def required(self) -> frozenset[str]:
        return frozenset(self.problems[0]).intersection(*self.problems)

    @cached_property
    def written(self) -> frozenset[str]:
        return frozenset(name for p in self.problems for name, spec in p.items() if spec.written)

    @cached_property
    def made(self) -> tuple[str, ...]:
        """Operands that no problem reads; the functional form creates them."""
        roles = {n: {p[n].role for p in self.problems if n in p} for n in self.fields}
        return tuple(n for n in self.fields if "out" in roles[n] and "in" not in roles[n])

    @property
    def is_in_place(self) -> bool:
        """Whether this is the in-place form: it reads and writes an operand that the other form only reads or only writes."""
        return self.name.endswith("_")

    @cached_property
    def results(self) -> tuple[str, ...]:
        """The results of the functional form."""
        return tuple(name for name in self.kind.args_type.__slots__ if name in self.written)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The tensor arguments of the functional form."""
        return tuple(name for name in self.fields if name not in self.made)

    @cached_property
    def flags(self) -> tuple[str, ...]:
        """Results that some problem omits, by a field `return_<name>` of the descriptor or by another field."""
        fields = self.kind.model_fields
        return tuple(name for name in self.results if f"return_{name}" in fields or name not in self.required)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The tensor arguments of the torch schema, in order: required operands, outputs, the workspace, then the others."""
        split = len([n for n in self.fields if n in self.required or n in self.written])
        return (*self.fields[:split], "workspace", *self.fields[split:])

    @cached_property
    def nullable(self) -> frozenset[str]:
        """Required operands that may be None, because they belong to a list that may be empty."""
        fields = self.kind.model_fields
        empty = [names for whole, names in self._listed.items() if fields[whole].default == ()]
        return frozenset(name for names in empty for name in names if name in self.required and name not in self.written)

    @cached_property
    def listed(self) -> frozenset[str]:
        """Operands whose shapes the descriptor lists in a field, so that no example determines them."""
        return frozenset(name for names in self._listed.values() for name in names)

    @property
    def _listed(self) -> dict[str, Sequence[str]]:
        parts = self.kind.args_type.parts.items()
        return {whole: some.names for whole, some in parts if whole in self.kind.model_fields}

    def schema(self) -> str:
        parts = [self.required_part(n) if n in self.required else f"{self._type(n)}? {n}=None" for n in self.order]
        parts += [f"str? {name}=None" for name in self.handles]
        return f"{self.name}({', '.join(['SymInt plan', *parts])}) -> ()"

    @property
    def handles(self) -> tuple[str, ...]:
        """Arguments that are not tensors: the group's name if the op runs over several ranks."""
        return (GROUP,) if issubclass(self.kind.args_type, JoinedArgs) else ()

    def required_part(self, name: str) -> str:
        """The part of the schema for an operand that must always be passed."""
        return f"{self._type(name)}{'?' * (name in self.nullable)} {name}"

    def required_input(self, name: str) -> str:
        """The same part in the schema of the functional form, which overwrites no input."""
        return f"Tensor{'?' * (name in self.nullable)} {name}"

    def _type(self, name: str) -> str:
        written = [*(n for n in self.fields if n in self.written), "workspace"]
        return f"Tensor(a{written.index(name)}!)" if name in written else "Tensor"


def all_forms() -> tuple[Form, ...]:
    """The forms of all ops of all registered families."""
    kinds: dict[type[Descriptor[Any]], list[Descriptor[Any]]] = {}
    for example in examples():
        kinds.setdefault(type(example), []).append(example)
    return tuple(form for own in kinds.values() for form in forms_of(own))


def forms_of(own: Sequence[Descriptor[Any]]) -> Iterator[Form]:
    """The forms of one op, from its examples."""
    kind, problems = type(own[0]), [dict(operands_of(d)) for example in own for d in _around(example)]
    one_way = {name for p in problems for name, spec in p.items() if spec.role in ("in", "out")}
    overwrites = [any(spec.role == "inout" and name in one_way for name, spec in p.items()) for p in problems]
    for name, in_place in ((own[0].op, False), (f"{own[0].op}_", True)):
        chosen = tuple(p for p, is_so in zip(problems, overwrites, strict=True) if is_so is in_place)
        if chosen:
            yield Form(name, kind, chosen)


def _around(example: Descriptor[Any]) -> Iterator[Descriptor[Any]]:
    """The example, and its variants with one flag or choice changed, also inside a nested field."""
    yield example
    for name, values in _changes(example):
        for value in values:
            try:
                yield type(example).model_validate({**_plain(example), name: value})
            except DescriptorError:
                continue  # the change contradicts another field


def _changes(example: Model) -> Iterator[tuple[str, Iterable[Any]]]:
    yield from _choices(type(example))
    for name, part in _plain(example).items():
        if isinstance(part, Model):
            yield name, ({**_plain(part), inner: value} for inner, values in _choices(type(part)) for value in values)


def _choices(kind: type[Model]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Fields with few values. Fields for dtypes are skipped: the functional form has an argument for the dtype of an output."""
    for name, field in kind.model_fields.items():
        if field.annotation is bool:
            yield name, (False, True)
        elif get_origin(field.annotation) is Literal and not name.endswith("dtype") and len(get_args(field.annotation)) > 1:
            yield name, get_args(field.annotation)


def _plain(example: Model) -> dict[str, Any]:
    return {name: getattr(example, name) for name in type(example).model_fields}
