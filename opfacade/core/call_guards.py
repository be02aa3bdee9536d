"""Guards of a call: getters of the fields of a bundle, and a test that also checks whether a gradient is required."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """An attrgetter that returns a tuple for any number of names."""
    if not names:
        return lambda args: ()
    if len(names) > 1:
        return attrgetter(*names)
    only = attrgetter(names[0])
    return lambda args: (only(args),)


def unless_wanted(tensors: tuple[Tensor, ...], same: Callable[..., bool]) -> Callable[..., bool]:
    """A test that also fails if a gradient of these tensors is required.

    Torch's guards compare `requires_grad` but not the grad mode. The extra check takes 0.1 us, and only for parameters.
    """
    from torch import is_grad_enabled

    return (lambda *given: not is_grad_enabled() and same(*given)) if any(t.requires_grad for t in tensors) else same
