"""Remembers the last sound call, so that the same call is admitted without a check."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from opfacade.core.checks import has_memory, needs_gradient
from opfacade.core.descriptor import Args
from opfacade.core.operands import TensorSpec, room

if TYPE_CHECKING:
    from torch import Tensor

_Span = tuple[int, int]  # first byte, bytes


class CallMemo:
    """The sound call admitted last: the same bundle and workspace, with all memory in place, need no second check.

    Other calls of a CUDA plan have the host library's check (3 us), those of the reference the full one (140 us, beside
    milliseconds of arithmetic).
    """

    __slots__ = ("_last", "_present")

    def __init__(self, operands: Mapping[str, TensorSpec], fields: tuple[str, ...]) -> None:
        self._present = getter(tuple(name for name in fields if name in operands))
        self._last: _Last | None = None

    def is_last(self, args: Args, workspace: Tensor | None) -> bool:
        """Is it the call admitted last, with all its tensors as and where they were? About a microsecond."""
        last = self._last
        if last is None or args is None or last.args() is not args:
            return False
        tensors = self._present(args)
        if not last.same(*tensors) or [t.data_ptr() for t in tensors] != last.pointers:
            return False
        return last.holds(workspace) if workspace is not None else last.workspace is None

    def learn(self, args: Args, workspace: Tensor | None) -> None:
        """Remember a call that passed a check. Never tensors that need a gradient now or have no memory."""
        tensors = self._present(args)
        if any(needs_gradient(t) or not has_memory(t) for t in tensors):
            return
        last = self._last
        same = last.same if last is not None and last.same(*tensors) else unless_wanted(tensors, _same_as(tensors))
        held, span = (None, (0, 0)) if workspace is None else (weakref.ref(workspace), _span(workspace))
        self._last = _Last(weakref.ref(args), same, [t.data_ptr() for t in tensors], held, span)


class _Last(NamedTuple):
    """A bundle, a test for tensors of the same form, their addresses; the workspace and where it is."""

    args: weakref.ref[Args]
    same: Callable[..., bool]
    pointers: list[int]
    workspace: weakref.ref[Tensor] | None
    span: _Span

    def holds(self, workspace: Tensor) -> bool:
        """Is it the workspace of this call, as and where it was?"""
        same = self.workspace is not None and self.workspace() is workspace
        return same and workspace.dim() == 1 and _span(workspace) == self.span


def _span(workspace: Tensor) -> _Span:
    """Where it is, and its bytes: fewer where its storage shrank."""
    return workspace.data_ptr(), min(workspace.numel(), room(workspace))


def getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """attrgetter that gives a tuple whatever the number of names."""
    if not names:
        return lambda args: ()
    if len(names) > 1:
        return attrgetter(*names)
    only = attrgetter(names[0])
    return lambda args: (only(args),)


def unless_wanted(tensors: tuple[Tensor, ...], same: Callable[..., bool]) -> Callable[..., bool]:
    """A test that also holds only while no gradient of these tensors is wanted.

    Torch's guards compare `requires_grad` and not the grad mode. Only parameters pay for the question, 0.1 us.
    """
    from torch import is_grad_enabled

    return (lambda *given: not is_grad_enabled() and same(*given)) if any(t.requires_grad for t in tensors) else same


def _same_as(tensors: tuple[Tensor, ...]) -> Callable[..., bool]:
    """A test for tensors of the same types, dtypes, devices, shapes and strides.

    torch's own guards do it in one C++ call; they are not public, so where they are missing Python compares.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards
    except ImportError:
        wanted = [_signature(t) for t in tensors]
        return lambda *given: [_signature(t) for t in given] == wanted
    shapes: Any = [list(t.shape) for t in tensors]
    strides: Any = [list(t.stride()) for t in tensors]
    return TensorGuards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides).check


def _signature(t: Tensor) -> tuple[Any, ...]:
    return (type(t), t.shape, t.stride(), t.dtype, t.device, t.requires_grad, t.layout)
