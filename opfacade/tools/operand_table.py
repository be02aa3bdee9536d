"""The tensors of an op as a Markdown table: role, element types, when it is present, and its description.

Roles and types come from `operands()` of the EXAMPLES and of their variants with other dtypes. The rest is the text that
`help()` of the args shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

from opfacade.core.descriptor import operands_of
from opfacade.core.model import Model
from opfacade.core.operands import TensorSpec
from opfacade.errors import DescriptorError
from opfacade.select.registry import descriptor_types, examples

if TYPE_CHECKING:
    from opfacade.core.descriptor import Args

HEAD = "| tensor | role | element types | present | what it is |\n|---|---|---|---|---|"
_ROLES = {"in": "in", "index": "in", "out": "out", "inout": "in and out"}


def table(op: str) -> Iterator[str]:
    """The lines of a table with a row for each field of the op's args."""
    kind = descriptor_types()[op]
    yield HEAD
    for name in _fields(kind.args_type):
        roles, types = facts(op, name)
        cells = (", ".join(roles), ", ".join(types), present(op, name), kind.args_type.docs[name])
        yield f"| `{name}` | {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def facts(op: str, name: str) -> tuple[list[str], list[str]]:
    """Roles and element types of an operand, or of the elements of a list. If a program declares the types, they are not
    listed."""
    kind = descriptor_types()[op]
    declared = name in kind.args_type.parts and name in kind.model_fields
    parts = _parts(kind.args_type, name)
    found = [spec for operands in _operands(op) for part, spec in operands.items() if part in parts]
    roles = sorted({_ROLES[spec.role] for spec in found})
    return roles, ["as declared"] if declared else sorted({spec.dtype for spec in found})


def present(op: str, name: str) -> str:
    """When an operand is present: the deciding field and its values, "always", or "conditional" if the description states the
    condition."""
    kind = descriptor_types()[op]
    setting = kind.args_type.settings.get(name)
    if setting is not None and setting.field in kind.model_fields:
        return f"`{setting.field}`: {', '.join(f'`{value!r}`' for value in setting.present)}"
    parts = _parts(kind.args_type, name)
    return "always" if all(any(part in operands for part in parts) for operands in _operands(op)) else "conditional"


def _fields(args: type[Args]) -> list[str]:
    """The fields of the args in order, without operands for which another field stands."""
    parts = {name for field, some in args.parts.items() for name in some.names if name != field}
    return [name for name in args.__slots__ if name in args.docs and name not in parts]


def _parts(args: type[Args], name: str) -> tuple[str, ...]:
    """The operand of a field, and the operands for which the field stands."""
    some = args.parts.get(name)
    return (name,) if some is None else (name, *some.names)


@cache
def _operands(op: str) -> list[Mapping[str, TensorSpec]]:
    return [operands_of(varied) for one in examples() if one.op == op for varied in _varied(one)]


def _varied(one: Model) -> Iterator[Any]:
    """The model, and its variants with one dtype changed, as far as they are valid."""
    yield one
    for name, value in dict(one).items():
        for choice in _choices(one, name, value):
            try:
                yield type(one).model_validate(dict(one) | {name: choice})
            except DescriptorError:
                continue


def _choices(one: Model, name: str, value: object) -> Iterator[Any]:
    if isinstance(value, Model) and any(field.endswith("dtype") for field in type(value).model_fields):
        yield from (varied for varied in _varied(value) if varied is not value)
    elif name.endswith("dtype"):
        found = get_args(type(one).model_fields[name].annotation)
        yield from (choice for part in found for choice in (get_args(part) or (part,)) if isinstance(choice, str))
