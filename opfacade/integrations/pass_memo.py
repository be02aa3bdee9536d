"""Values shared by the layers of one forward pass: the first layer that needs a value computes it, and later layers reuse
it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from opfacade.core.device_tensors import beside
from opfacade.integrations.tensors import capturing

T = TypeVar("T")
MOST = 8  # kinds of layers in one model that share nothing


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    sources: tuple[weakref.ref[Tensor], ...]
    versions: tuple[int, ...]
    captured: bool
    maker: int
    value: T

    def holds(self, sources: tuple[Tensor, ...], layer: int) -> bool:
        # A call by the maker or by an earlier layer begins another pass: the same buffers may hold new contents.
        same = all(ref() is source for ref, source in zip(self.sources, sources, strict=True))
        return same and layer > self.maker and self.captured == capturing(sources[0]) and self.versions == _versions(sources)


class _Passes(threading.local, Generic[T]):
    """State of one thread: its values, the layer that asked last, and the last layer of the pass before."""

    def __init__(self) -> None:
        self.entries: dict[Hashable, _Entry[T]] = {}
        self.layer, self.last = -1, -1

    def note(self, layer: int) -> None:
        if layer <= self.layer:  # another pass
            self.last = self.layer
        self.layer = layer

    def drop_captured(self) -> None:
        """After the last layer. Values that were created in a capture are in the memory of its graph, and a graph tree refuses
        to record another size while something that it does not know of holds a part of that."""
        if self.layer == self.last:
            for key in [key for key, entry in self.entries.items() if entry.captured]:
                self.entries.pop(key, None)


class PassMemo(Generic[T]):
    """Values computed from tensors that all layers of a pass receive. Each thread has its own."""

    def __init__(self) -> None:
        self._local: _Passes[T] = _Passes()

    def get(self, module: object, sources: tuple[Tensor, ...], key: Hashable, make: Callable[[], T]) -> T:
        """make(), or the value that an earlier layer of this pass made from the same tensors if modules have a layer_idx."""
        layer = getattr(module, "layer_idx", None)
        if layer is None:
            return make()
        self._local.note(layer)
        found = self._local.entries.get(key)
        if found is not None and found.holds(sources, layer):
            value = found.value
        else:
            value = self._add(layer, sources, key, beside(make, sources[0].device))
        self._local.drop_captured()
        return value

    def _add(self, layer: int, sources: tuple[Tensor, ...], key: Hashable, value: T) -> T:
        entries = self._local.entries
        entries.pop(key, None)
        while len(entries) >= MOST:
            entries.pop(next(iter(entries)))

        def forget(dead: weakref.ref[Tensor]) -> None:
            """A value is dropped with its tensor: packed masks of a long sequence have hundreds of megabytes."""
            held = entries.get(key)
            if held is not None and dead in held.sources:
                entries.pop(key, None)

        refs = tuple(weakref.ref(source, forget) for source in sources)
        entries[key] = _Entry(refs, _versions(sources), capturing(sources[0]), layer, value)
        return value


def _versions(sources: tuple[Tensor, ...]) -> tuple[int, ...]:
    """Number of in-place writes of each; inference tensors do not count them."""
    return tuple(-1 if source.is_inference() else source._version for source in sources)
