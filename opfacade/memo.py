"""Remembers sound calls, so that the same call, or one just like it, is admitted without a full check."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from opfacade.descriptor import Args
from opfacade.operands import TensorSpec, has_memory, room
from opfacade.overlap import extent

if TYPE_CHECKING:
    from torch import Tensor

_MAX_KINDS = 8
_Span = tuple[int, int]  # first byte, bytes


class CallMemo:
    """Two memories of sound calls of one plan.

    The very same bundle and workspace, with all memory where it was, is known at once. A new bundle is known when one of
    the same shapes, strides, dtypes and devices was sound; only its addresses are then looked at: alignment, and what is
    written apart from the rest.
    """

    __slots__ = ("_absent", "_fields", "_kinds", "_last", "_nested", "_offsets", "_operands", "_present", "_type", "_written")
    _absent: Callable[[Any], tuple[Any, ...]]
    _nested: Callable[[Any], tuple[Any, ...]]
    _offsets: list[int]
    _present: Callable[[Any], tuple[Any, ...]]
    _type: type[Args]
    _written: list[int]

    def __init__(self, operands: Mapping[str, TensorSpec], fields: tuple[str, ...]) -> None:
        self._operands, self._fields = operands, fields
        self._last: _Last | None = None
        self._kinds: list[_Kind] = []

    def is_last(self, args: Args, workspace: Tensor | None) -> bool:
        """Is it the call admitted last, with all its tensors as and where they were? About a microsecond."""
        last = self._last
        if last is None or args is None or last.args() is not args:
            return False
        tensors = self._present(args)
        if not last.kind.same(*tensors) or [t.data_ptr() for t in tensors] != last.pointers:
            return False
        return self._holds(workspace) if workspace is not None else last.workspace is None

    def knows(self, args: Args, workspace: Tensor | None) -> bool:
        """Is it like a call that was admitted before?"""
        if not self._kinds or type(args) is not self._type or (workspace is not None and not self._holds(workspace)):
            return False
        try:
            if True in self._nested(args):
                return False  # torch ends the process where it compares strides of one
            tensors = self._present(args)
            kind = next((kind for kind in self._kinds if kind.same(*tensors)), None)
            spans = None if kind is None else kind.spans(tensors)
        except (AttributeError, TypeError, RuntimeError):  # RuntimeError: a tensor without strides or without storage
            return False
        if kind is None or spans is None or any(value is not None for value in self._absent(args)):
            return False
        extra = [] if workspace is None else [(workspace.data_ptr(), workspace.numel())]
        if not self._apart(spans, extra):
            return False
        self._remember(args, kind, [start for start, _ in spans], workspace)
        return True

    def learn(self, args: Args, workspace: Tensor | None) -> None:
        """Remember a call that passed the full check. Never tensors that need a gradient or have no memory."""
        if not self._kinds:
            self._prepare()
        tensors = self._present(args)
        if any(t.requires_grad or not has_memory(t) for t in tensors):
            return
        sizes = [extent(t.shape, t.stride()) * t.element_size() if t.numel() else 0 for t in tensors]
        kind = _Kind(_same_as(tensors), sizes, [t.itemsize for t in tensors], self._offsets)
        self._type = type(args)
        self._kinds = [kind, *self._kinds[: _MAX_KINDS - 1]]
        self._remember(args, self._kinds[0], [t.data_ptr() for t in tensors], workspace)

    def _prepare(self) -> None:
        """What only a plan that is called needs; before the first call is remembered, nothing asks for it."""
        present = tuple(name for name in self._fields if name in self._operands)
        self._offsets = [self._operands[name].alignment - 1 for name in present]
        self._written = [i for i, name in enumerate(present) if self._operands[name].written]
        self._absent = getter(tuple(name for name in self._fields if name not in self._operands))
        self._present = getter(present)
        self._nested = getter(tuple(f"{name}.is_nested" for name in present))

    def _remember(self, args: Args, kind: _Kind, pointers: list[int], workspace: Tensor | None) -> None:
        held = None if workspace is None else weakref.ref(workspace)
        self._last = _Last(weakref.ref(args), kind, pointers, held, (0, 0) if workspace is None else _span(workspace))

    def _holds(self, workspace: Tensor) -> bool:
        """Was this workspace part of the last sound call, and is it as and where it was?"""
        last = self._last
        held = last is not None and last.workspace is not None and last.workspace() is workspace
        return held and last is not None and workspace.dim() == 1 and _span(workspace) == last.span

    def _apart(self, spans: list[_Span], extra: list[_Span]) -> bool:
        reach = -1
        for start, size in sorted((*spans, *extra)):
            if start < reach:  # some two meet: do two that matter?
                written = [spans[i] for i in self._written] + extra
                return all(a is b or not _meet(a, b) for a in written for b in (*spans, *extra))
            reach = start + size
        return True


class _Last(NamedTuple):
    """The call admitted last: its bundle, its kind, where its tensors are, its workspace and where that is."""

    args: weakref.ref[Args]
    kind: _Kind
    pointers: list[int]
    workspace: weakref.ref[Tensor] | None
    span: _Span


class _Kind(NamedTuple):
    """Sound tensors of one form: a test for others of it, and of each the bytes that it spans, the bytes of an element, and the
    bits that alignment leaves no address."""

    same: Callable[..., bool]
    sizes: list[int]
    itemsizes: list[int]
    offsets: list[int]

    def spans(self, tensors: tuple[Tensor, ...]) -> list[_Span] | None:
        """Where the tensors are; None if one is not where it may be, or its storage shrank."""
        spans, off = [], 0
        for tensor, size, itemsize, offset in zip(tensors, self.sizes, self.itemsizes, self.offsets, strict=True):
            start = tensor.data_ptr()
            spans.append((start, size))
            if size == 0:
                continue
            if start == 0 or tensor.untyped_storage().nbytes() - tensor.storage_offset() * itemsize < size:
                return None
            off |= start & offset
        return None if off else spans


def _span(workspace: Tensor) -> _Span:
    """Where it is, and its bytes: fewer where its storage shrank."""
    return workspace.data_ptr(), min(workspace.numel(), room(workspace))


def _meet(a: _Span, b: _Span) -> bool:
    return a[0] < b[0] + b[1] and b[0] < a[0] + a[1] and a[1] > 0 and b[1] > 0


def getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """attrgetter that gives a tuple whatever the number of names."""
    if not names:
        return lambda args: ()
    if len(names) > 1:
        return attrgetter(*names)
    only = attrgetter(names[0])
    return lambda args: (only(args),)


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
