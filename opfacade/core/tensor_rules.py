"""Rules on one tensor that a family states itself, because TensorSpec has no fields for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.errors import Issue


class Rules(Protocol):
    """Rules on one tensor, in addition to those of its TensorSpec: on tiled strides, or on the device that holds it. Hashable.

    The host library does not know them, so each call of a plan with such an operand gets the full check.
    """

    @property
    def elsewhere(self) -> bool:
        """Whether the tensor may be on another device than the other operands; then only these rules restrict its device."""
        ...

    def issues(self, name: str, tensor: Tensor, first: Tensor) -> Sequence[Issue]:
        """The issues of an operand that satisfies its spec; reads metadata alone. first: an operand on the device of the
        call."""
        ...
