"""Tensors that many calls share, created once per device. No caller writes to them.

Graph trees of torch.compile run a function before they capture it, and allocate the tensors of that thread from the pool of
their graphs. Later graphs would overwrite a tensor that is kept from such a run. So a separate thread creates a GPU tensor on a
separate stream and synchronizes: the tensor is complete before another stream can read it.

If several streams read a tensor, torch calls CUDA to free it, and a CUDA call kills a forked child by a signal. So a child
keeps all such tensors, and tensors that a GPU copies to or from the host, until it ends.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from opfacade.base.capture import capturing as capturing
from opfacade.base.fork_lock import ForkLock
from opfacade.core import opaque

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")
Dead: TypeAlias = "weakref.ref[Tensor]"
MOST_BYTES = 16 << 20  # per cache, all devices together
MOST_DERIVED_BYTES = 256 << 20
_TREES = "torch._inductor.cudagraph_trees"
_caches: weakref.WeakSet[Any] = weakref.WeakSet()
_left_to_children: dict[int, Dead] = {}
_held: list[object] = []  # during a fork; Python clears other threads' references before the child can keep them


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    streams: set[int] = field(default_factory=set)  # addresses of the streams that may read it

    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in _tensors_in(self.value))

    def release(self, device: torch.device) -> None:
        """Let torch use the memory again only after the streams that may read it."""
        import torch

        for stream in self.streams:
            for tensor in _tensors_in(self.value):
                read_by(tensor, torch.cuda.ExternalStream(stream, device))  # type: ignore[no-untyped-call]


@opaque.methods("get")
class DeviceTensors(Generic[T]):
    """Caches make(device, *key), a tensor or a tuple of tensors. Bounded in bytes: the least recently used entry is dropped
    first.

    During a CUDA graph capture the result is new, because a graph owns its memory. lasting: a capture uses cached entries too,
    and entries are never dropped: for values from the host, which a capture cannot copy.
    """

    def __init__(self, make: Callable[..., T], most_bytes: int = MOST_BYTES, lasting: bool = False) -> None:
        self._make, self._most, self._lasting = make, most_bytes, lasting
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()
        self._bytes = 0
        self._lock = ForkLock()
        _caches.add(self)

    def get(self, device: torch.device, *key: Hashable) -> T:
        place, captured = _indexed(device), capturing(device)
        if captured and not (self._lasting and (place, *key) in self._entries):
            return self._make(place, *key)
        found = self._find(place, key)
        return found if found is not None else self._add(place, key, _made(self._make, place, key))

    def _find(self, device: torch.device, key: tuple[Hashable, ...]) -> T | None:
        with self._lock:
            entry = self._entries.get((device, *key))
            if entry is None:
                return None
            self._entries.move_to_end((device, *key))
            _note_stream(entry, device)
            return entry.value

    def _add(self, device: torch.device, key: tuple[Hashable, ...], value: T) -> T:
        """Adds and returns the value, or returns the value that another thread added first."""
        with self._lock:
            entry = self._entries.get((device, *key))
            if entry is None:
                entry = self._entries[(device, *key)] = _Entry(value)
                self._bytes += entry.bytes()
            _note_stream(entry, device)
            while self._bytes > self._most and len(self._entries) > 1 and not self._lasting:
                self._drop_oldest()
            return entry.value

    def leave(self) -> None:
        """In a forked child: forget the GPU tensors, which `_tensors_of_gpus` keeps alive there."""
        for key in [key for key in self._entries if key[0].type == "cuda"]:  # type: ignore[index]
            self._bytes -= self._entries.pop(key).bytes()

    def _drop_oldest(self) -> None:
        key, entry = self._entries.popitem(last=False)
        self._bytes -= entry.bytes()
        entry.release(key[0])  # type: ignore[index]


@dataclass(slots=True)
class _Made(_Entry[T]):
    """A value with its sources and their version counters when it was computed."""

    sources: tuple[Dead, ...] = ()
    versions: tuple[int, ...] = ()

    def holds(self, sources: tuple[Tensor, ...]) -> bool:
        same = all(ref() is source for ref, source in zip(self.sources, sources, strict=True))
        return same and self.versions == tuple(source._version for source in sources)


class DerivedTensors(Generic[T]):
    """Caches make() of tensors of the caller until one of them dies or is written: layers and steps of a model share the
    result. Bounded in bytes: the oldest entry is dropped first, and the newest is kept at any size.

    It has no lock, because a source may die at any moment, in any thread. Nothing is cached for inference tensors, which do not
    count writes, nor during a CUDA graph capture.
    """

    def __init__(self, most_bytes: int = MOST_DERIVED_BYTES) -> None:
        self._most = most_bytes
        self._entries: dict[tuple[int, ...], _Made[T]] = {}
        _caches.add(self)

    def get(self, sources: tuple[Tensor, ...], make: Callable[[], T]) -> T:
        device = sources[0].device
        if capturing(device) or any(source.is_inference() for source in sources):
            return make()
        key = tuple(map(id, sources))
        entry = self._entries.get(key)
        if entry is None or not entry.holds(sources):
            entry = self._add(key, sources, _in_order(make, device))
        _note_stream(entry, device)
        return entry.value

    def _add(self, key: tuple[int, ...], sources: tuple[Tensor, ...], value: T) -> _Made[T]:
        refs = tuple(weakref.ref(source, lambda dead: self._drop(key, dead)) for source in sources)
        made = _Made(value, sources=refs, versions=tuple(source._version for source in sources))
        self._drop(key)
        self._entries[key] = made
        while len(known := list(self._entries.items())) > 1 and sum(entry.bytes() for _, entry in known) > self._most:
            self._drop(known[0][0])
        return made

    def _drop(self, key: tuple[int, ...], dead: Dead | None = None) -> None:
        """Forget a value; dead: only if the value was computed from this tensor."""
        entry = self._entries.get(key)
        if entry is None or (dead is not None and dead not in entry.sources):
            return
        self._entries.pop(key, None)
        first: Any = next(_tensors_in(entry.value))
        entry.release(first.device)

    def leave(self) -> None:
        """In a forked child: forget everything; `_tensors_of_gpus` keeps the GPU tensors alive."""
        self._entries.clear()


def _indexed(device: torch.device) -> torch.device:
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device


def _note_stream(entry: _Entry[Any], device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        entry.streams.add(torch._C._cuda_getCurrentRawStream(device.index))


def _made(make: Callable[..., T], device: torch.device, key: tuple[Hashable, ...]) -> T:
    import torch

    if device.type != "cuda":
        with torch.inference_mode(False), torch.no_grad():
            return make(device, *key)
    return _elsewhere(lambda: _on_own_stream(make, device, key))


def _on_own_stream(make: Callable[..., T], device: torch.device, key: tuple[Hashable, ...]) -> T:
    import torch

    stream = _stream(device)
    with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(device), torch.cuda.stream(stream):
        value = make(device, *key)
        stream.synchronize()
        return value


def _in_order(make: Callable[[], T], device: torch.device) -> T:
    """make() after the work of the current stream, complete for all streams, and outside the pool of a graph tree."""
    import torch

    if device.type != "cuda":
        with torch.inference_mode(False), torch.no_grad():
            return make()
    current = torch.cuda.current_stream(device)

    def work(_: torch.device) -> T:
        _stream(device).wait_stream(current)
        return make()

    return _elsewhere(lambda: _on_own_stream(work, device, ()))


def beside(make: Callable[[], T], device: torch.device) -> T:
    """make() of tensors that a few later calls share, ordered on the current stream and outside the pool of a graph tree.

    Tensors created during a capture belong to its graph. Without graph trees in the process, make() is called directly.
    """
    import torch

    if device.type != "cuda" or _TREES not in sys.modules or capturing(device):
        return make()
    current = torch.cuda.current_stream(device)

    def work() -> T:
        stream = _stream(device)
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(device), torch.cuda.stream(stream):
            stream.wait_stream(current)
            value = make()
            current.wait_stream(stream)
            for tensor in _tensors_in(value):
                read_by(tensor, current)
            return value

    return _elsewhere(work)


def read_by(tensor: Tensor, stream: torch.cuda.Stream) -> None:
    """`tensor.record_stream(stream)`; a forked child keeps the tensor."""
    keep_in_children(tensor)
    tensor.record_stream(stream)


def keep_in_children(tensor: Tensor) -> None:
    """Keeps this tensor in forked children, where torch would call CUDA to free it."""
    key = id(tensor)
    _left_to_children[key] = weakref.ref(tensor, lambda dead: _left_to_children.pop(key, None))


def _tensors_in(value: object) -> Iterator[Tensor]:
    if isinstance(value, (dict, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(part)
    else:
        yield value  # type: ignore[misc]


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    import torch

    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _elsewhere(work: Callable[[], T]) -> T:
    """The result of `work` in another thread, or its error."""
    with ThreadPoolExecutor(1) as other:
        return other.submit(work).result()


def _tensors_of_gpus() -> list[object]:
    """All tensors that torch would call CUDA to free."""
    kept: list[object] = [tensor for ref in list(_left_to_children.values()) if (tensor := ref()) is not None]
    for one in list(_caches):
        kept += [entry.value for entry in list(one._entries.values()) if entry.streams]
    return kept


def _before_fork() -> None:
    _held[:] = _tensors_of_gpus()


def _after_fork() -> None:
    """Leaks the held tensors on purpose: nothing frees them, even when the interpreter exits."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(tuple(_held)))
    _held.clear()
    _left_to_children.clear()
    for one in list(_caches):
        one.leave()
    _stream.cache_clear()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork, after_in_parent=_held.clear)
