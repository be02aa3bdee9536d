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
MOST = 8  # maximum number of kinds of layers in a model that share no values


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    sources: tuple[weakref.ref[Tensor], ...]
    versions: tuple[int, ...]
    captured: bool
    maker: int
    value: T

    def holds(self, sources: tuple[Tensor, ...], layer: int) -> bool:
        # A call by the layer that computed the value, or by an earlier one, begins a new pass: buffers may have new contents.
        same = all(ref() is source for ref, source in zip(self.sources, sources, strict=True))
        return same and layer > self.maker and self.captured == capturing(sources[0]) and self.versions == _versions(sources)


class _Passes(threading.local, Generic[T]):
    """The state of one thread: its values, the layer of the latest call, and the last layer of the previous pass."""

    def __init__(self) -> None:
        self.entries: dict[Hashable, _Entry[T]] = {}
        self.layer, self.last = -1, -1

    def note(self, layer: int) -> None:
        if layer <= self.layer:  # another pass
            self.last = self.layer
        self.layer = layer

    def drop_captured(self) -> None:
        """Drops the values after the last layer. Values that were created in a capture are in the memory of its graph, and
        torch's graph trees refuse to record another size while unknown references to that memory exist."""
        if self.layer == self.last:
            for key in [key for key, entry in self.entries.items() if entry.captured]:
                self.entries.pop(key, None)


class PassMemo(Generic[T]):
    """Values computed from tensors that all layers of a pass receive. Each thread has separate values."""

    def __init__(self) -> None:
        self._local: _Passes[T] = _Passes()

    def get(self, module: object, sources: tuple[Tensor, ...], key: Hashable, make: Callable[[], T]) -> T:
        """make(), or if modules have a layer_idx, the value that an earlier layer of this pass computed from the same
        tensors."""
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
            """A value is dropped when its source tensor is freed, because the packed mask of a long sequence can take hundreds
            of megabytes."""
            held = entries.get(key)
            if held is not None and dead in held.sources:
                entries.pop(key, None)

        refs = tuple(weakref.ref(source, forget) for source in sources)
        entries[key] = _Entry(refs, _versions(sources), capturing(sources[0]), layer, value)
        return value


def _versions(sources: tuple[Tensor, ...]) -> tuple[int, ...]:
    """torch's version counter of each tensor, which counts in-place writes; inference tensors have none."""
    return tuple(-1 if source.is_inference() else source._version for source in sources)
