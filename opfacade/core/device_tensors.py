"""Small tensors that many calls share, made once a device. No caller writes into one.

Graph trees of torch.compile run a function before they capture it, and give the allocations of that thread to the pool of their
graphs. A tensor that is kept from such a run would be overwritten by later graphs. So a thread of its own makes a tensor for a
GPU, on a stream of its own, and waits for it: it is complete before another stream can read it.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from opfacade.base.capture import capturing as capturing
from opfacade.base.fork_lock import ForkLock
from opfacade.core import opaque

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")
MOST_BYTES = 16 << 20  # of one cache, on all devices together
_TREES = "torch._inductor.cudagraph_trees"


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    streams: set[int] = field(default_factory=set)  # addresses of those whose work may read it

    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in _tensors_in(self.value))

    def release(self, device: torch.device) -> None:
        """Let torch use the memory again only after the streams that may read it."""
        import torch

        for stream in self.streams:
            for tensor in _tensors_in(self.value):
                tensor.record_stream(torch.cuda.ExternalStream(stream, device))  # type: ignore[no-untyped-call]


@opaque.methods("get")
class DeviceTensors(Generic[T]):
    """make(device, *key) of each key, a tensor or a tuple of them, bounded by bytes: the least recently used goes first.

    While a CUDA graph is captured the result is a new one, because a graph owns its memory. lasting: it is the kept one then
    too, and none ever goes: for values that come from the host, which a capture cannot copy.
    """

    def __init__(self, make: Callable[..., T], most_bytes: int = MOST_BYTES, lasting: bool = False) -> None:
        self._make, self._most, self._lasting = make, most_bytes, lasting
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()
        self._bytes = 0
        self._lock = ForkLock()

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
        """The value, or that of a thread that was quicker."""
        with self._lock:
            entry = self._entries.get((device, *key))
            if entry is None:
                entry = self._entries[(device, *key)] = _Entry(value)
                self._bytes += entry.bytes()
            _note_stream(entry, device)
            while self._bytes > self._most and len(self._entries) > 1 and not self._lasting:
                self._drop_oldest()
            return entry.value

    def _drop_oldest(self) -> None:
        key, entry = self._entries.popitem(last=False)
        self._bytes -= entry.bytes()
        entry.release(key[0])  # type: ignore[index]


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


def beside(make: Callable[[], T], device: torch.device) -> T:
    """make() of tensors that a few later calls share, in order with the current stream and outside of the pool of a graph tree.

    The tensors that a capture makes belong to its graph. Without graph trees in the process no pool is in the way.
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
                tensor.record_stream(current)
            return value

    return _elsewhere(work)


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
