"""Remembers sound calls, so that the same call, or one just like it, is admitted without a full check."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from opfacade.descriptor import Args
from opfacade.operands import TensorSpec, has_memory
from opfacade.overlap import extent

_MAX_SIGNATURES = 64


class CallMemo:
    """Two memories of sound calls of one plan.

    The very same bundle whose tensors have not moved is known at once. A new bundle is known when its shapes, strides,
    dtypes and devices were seen before; only its addresses are then looked at: alignment, and outputs apart from the rest.
    """

    __slots__ = ("_fields", "_last", "_pointers", "_shapes", "_signatures", "_written")

    def __init__(self, operands: Mapping[str, TensorSpec], fields: tuple[str, ...]) -> None:
        present = tuple(name for name in fields if name in operands)
        self._fields = _getter(fields)
        self._pointers = _getter(present)
        self._written = [operands[name].written for name in present]
        self._last: tuple[weakref.ref[Args], list[int]] | None = None
        self._signatures: dict[Any, list[int]] = {}

    def is_last(self, args: Args) -> bool:
        """Is it the bundle admitted last, with all its memory where it was? Under a microsecond."""
        last = self._last
        return (
            last is not None
            and args is not None
            and last[0]() is args
            and [t.data_ptr() for t in self._pointers(args)] == last[1]
        )

    def knows(self, args: Args) -> bool:
        """Is it like a bundle that was admitted before? Never true for tensors that need a gradient or have no memory."""
        try:
            sizes = self._signatures.get(_signature(self._fields(args)))
            if sizes is None:
                return False
            tensors = self._pointers(args)
            if any(_room(t) < size for t, size in zip(tensors, sizes, strict=True)):
                return False
            starts = [t.data_ptr() for t in tensors]
        except (AttributeError, TypeError, RuntimeError):  # RuntimeError: a tensor without strides or without storage
            return False
        if not self._sound_addresses(starts, sizes):
            return False
        self._last = (weakref.ref(args), starts)
        return True

    def learn(self, args: Args) -> None:
        """Remember a bundle that passed the full check."""
        tensors = self._pointers(args)
        if any(t.requires_grad or not has_memory(t) for t in tensors):
            return
        if len(self._signatures) >= _MAX_SIGNATURES:
            self._signatures.clear()
        sizes = [extent(t.shape, t.stride()) * t.element_size() if t.numel() else 0 for t in tensors]
        self._signatures[_signature(self._fields(args))] = sizes
        self._last = (weakref.ref(args), [t.data_ptr() for t in tensors])

    def _sound_addresses(self, starts: list[int], sizes: list[int]) -> bool:
        for i, is_written in enumerate(self._written):
            start, size = starts[i], sizes[i]
            if size and (start == 0 or start % 16):
                return False
            if is_written and size:
                for j, other in enumerate(starts):
                    if j != i and start < other + sizes[j] and other < start + size:
                        return False
        return True


def _room(tensor: Any) -> int:
    """Bytes of storage from the first element on: a storage can shrink under a view of it."""
    room: int = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.itemsize
    return room


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    only = attrgetter(names[0])
    return lambda args: (only(args),)


def _signature(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        None if t is None else (type(t), t.shape, t.stride(), t.dtype, t.device, t.requires_grad, t.layout, t.is_neg())
        for t in tensors
    )
