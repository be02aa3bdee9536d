"""Checks the values of integer operands, of every family, against the bounds in their TensorSpec. Reads them on the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.model import INT64_MAX
from opfacade.core.operands import valid_count
from opfacade.errors import MAX_ISSUES, IndexDataError
from opfacade.validation.rules import index_error

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.candidate import Launcher
    from opfacade.core.descriptor import Args

OUTSIDE = 11  # kOutside of kernels/validation/value_check_params.h


@dataclass(frozen=True, slots=True)
class Bounded:
    """An operand whose values are at least `first` and below `stop`. valid_rows: the operand with the number of valid entries
    of axis `axis`. written: the op writes the operand, so it cannot be replaced by a copy. below: an operand; the values must
    be less than its size of axis 0."""

    name: str
    first: int
    stop: int
    valid_rows: str
    written: bool
    below: str = ""
    axis: int = 0

    def end(self, args: Args) -> int:
        """The exclusive upper bound of the values in one call."""
        return min(self.stop, int(getattr(args, self.below).shape[0])) if self.below else self.stop

    def allowed(self, args: Args) -> str:
        """The allowed values as text. args is None if the call is over; then the bound `below` is described by its axis."""
        if self.below and args is None:
            return f"a value at least {self.first} and below the size of axis 0 of {self.below}"
        return f"a value in [{self.first}, {self.stop if args is None else self.end(args)})"

    def valid(self, args: Args) -> Tensor | None:
        """The tensor with the number of valid rows; None if all rows are valid."""
        return getattr(args, self.valid_rows) if self.valid_rows else None


@dataclass(frozen=True, slots=True)
class Outside:
    """A value outside its bounds, at a position in row-major order. call: the number of the plan's checked launch, from 0."""

    bounded: Bounded
    position: int
    value: int
    call: int = -1


def bounded_of(descriptor: Descriptor[Any]) -> tuple[Bounded, ...]:
    """The operands with bounds, in the order of `operands()`."""
    specs = operands_of(descriptor).items()
    return tuple(
        Bounded(name, *spec.contents.values, spec.valid_rows, spec.written, spec.contents.below, spec.valid_axis)
        for name, spec in specs
        if spec.contents.values is not None
    )


def findings(bounded: Sequence[Bounded], args: Args) -> Iterator[Outside]:
    """The first invalid value of each operand. If the number of valid rows is itself invalid, no row is valid, as on the
    device."""
    for one in bounded:
        tensor, rows = signed(getattr(args, one.name)), one.valid(args)
        wrong = (tensor < one.first) | (tensor >= one.end(args))
        if rows is not None:
            size = tensor.shape[one.axis]
            count = valid_count(rows, size)
            wrong.narrow(one.axis, count, size - count).fill_(False)
        if bool(wrong.any()):
            position = int(wrong.flatten().nonzero()[0])
            yield Outside(one, position, int(tensor.flatten()[position]))


def signed(tensor: Tensor) -> Tensor:
    """The values in a type that torch can compare; a uint64 above the largest int64 becomes the largest int64."""
    import torch

    if tensor.dtype == torch.uint64:
        values = tensor.view(torch.int64)
        return values.masked_fill(values < 0, INT64_MAX)
    return tensor.to(torch.int64) if tensor.dtype in (torch.uint16, torch.uint32) else tensor


def error_of(op: str, found: Sequence[Outside], args: Any = None) -> IndexDataError:
    """The error for the first finding, with all findings attached. args is None if the call is over; then positions are
    flat."""
    errors = [_one(op, one, args) for one in found[:MAX_ISSUES]]
    errors[0].issues = tuple(error.issues[0] for error in errors)
    return errors[0]


def _one(op: str, found: Outside, args: Args) -> IndexDataError:
    bounded = found.bounded
    place = str(found.position)
    if args is not None:
        place = ", ".join(str(i) for i in _unravelled(found.position, getattr(args, bounded.name).shape))
    return index_error(op, bounded.name, found.position, found.value, bounded.allowed(args), call=found.call, place=place)


def _unravelled(position: int, shape: Sequence[int]) -> list[int]:
    places: list[int] = []
    for size in reversed(shape):
        position, at = divmod(position, size)
        places.insert(0, at)
    return places


class ValueGuard:
    """Checks the values on the host before a launch, for launchers on the CPU at level indices. Synchronises."""

    def __init__(self, op: str, bounded: Sequence[Bounded]) -> None:
        self._op, self._bounded = op, bounded

    def wrap(self, launch: Launcher) -> Launcher:
        def guarded(args: Args, workspace: object) -> None:
            self.judge(args)
            launch(args, workspace)

        return guarded

    def judge(self, args: Args) -> None:
        """Raises for the first value outside its bounds."""
        found = list(findings(self._bounded, args))
        if found:
            raise error_of(self._op, found, args)

    def check(self) -> None:
        """Never raises, because every call is checked before it runs."""
