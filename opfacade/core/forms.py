"""Forms of operands that consist of several tensors. A family defines its own forms; nothing here knows one of them.

A call holds one tensor per operand. `Descriptor.operands()` may contain a `Form`, which is replaced by the operands of its
tensors, so that checks, random inputs, byte counts and torch ops see tensors alone. `Parts` lets callers pass all tensors of a
form as one value.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Protocol

from opfacade.core.operands import TensorSpec
from opfacade.errors import Issue


class Form(Protocol):
    """The form of an operand that consists of several tensors, such as codes with their scales, for one descriptor."""

    def tensors(self, name: str) -> Mapping[str, TensorSpec]:
        """The operand of each tensor. name: of the whole, which may also be the name of one of its tensors."""
        ...


class Parts(Protocol):
    """The operands for which a field of an Args class stands: the value of the field is replaced by their tensors."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the operands."""
        ...

    def doc(self, field: str) -> str:
        """The description of these operands. field: that stands for them."""
        ...

    def take(self, value: object) -> Sequence[object] | None:
        """The tensors of a value, in the order of `names`; operands after the last are absent, as are those with None.

        None: the value stays in its field. A view may replace a tensor whose element type has no name in core/dtypes.py.
        """
        ...

    def refusal(self, field: str, value: object) -> Issue | None:
        """The issue of a value that stayed in its field; None for a tensor, and for any value that the usual check refuses."""
        ...


Operand = TensorSpec | Form


def expanded(operands: Mapping[str, Operand]) -> dict[str, TensorSpec]:
    """The operands of a call: each form is replaced by its tensors.

    Raises TypeError if two tensors have the same name, or if the first may be on another device: a plan reads the device of a
    call from its first operand.
    """
    found: dict[str, TensorSpec] = {}
    for name, operand in operands.items():
        if isinstance(operand, TensorSpec):
            found[name] = operand
        else:
            found |= _of_form(name, operand, found.keys() | (operands.keys() - {name}))
    first = next(iter(found), None)
    if first is not None and found[first].elsewhere:
        raise TypeError(f"the first operand, {first}, must be on the device of the call.")
    return found


def _of_form(name: str, form: Form, others: set[str]) -> Mapping[str, TensorSpec]:
    tensors = form.tensors(name)
    twice = sorted(others & tensors.keys())
    if twice:
        raise TypeError(f"the form of {name} has a tensor {twice[0]}, which is also another operand.")
    return tensors


def too_large(fields: Container[str], name: str, spec: TensorSpec) -> tuple[str, str, object]:
    """Issue of an operand that is too large: the field of the descriptor with the largest factor, expected, actual."""
    known = [dim for dim in spec.shape if dim.size is not None and dim.name in fields]
    most = max(known, key=lambda dim: dim.size or 0, default=None)
    sizes = [dim.size for dim in spec.shape]
    expected = f"{name} to have at most 2^63 - 1 bytes; its sizes are {sizes}"
    return (name, expected, sizes) if most is None else (most.name, expected, most.size)
