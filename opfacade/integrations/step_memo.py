"""Values that the layers of one step share, computed on the device from the step's index tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from torch import Tensor

from opfacade.integrations.tensors import capturing

T = TypeVar("T")


class StepMemo:
    """The first layer that needs a value computes it, and later layers reuse it; the next call of the first layer computes it
    again. So a captured graph computes the value in every replay, and a value is never outdated if several passes share
    metadata."""

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[object, bool, Any]] = {}

    def get(self, key: Hashable, layer: object, source: Tensor, make: Callable[[], T]) -> T:
        """make(), or the value that another layer of this pass computed. source: a tensor from which the value is computed."""
        found, captured = self._made.get(key), capturing(source)
        if found is None or found[0] is layer or found[1] != captured:
            found = self._made[key] = (layer, captured, make())
        value: T = found[2]
        return value
