"""Tells autograd that a call wrote its outputs: if another op saved an output for its backward, that backward raises, as after
a torch op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opfacade.core.call_guards import getter
from opfacade.core.operands import TensorSpec


def nothing(args: object) -> None:
    """The counter of a plan that is not loaded: counts nothing."""


def counter(operands: Mapping[str, TensorSpec], fields: tuple[str, ...]) -> Callable[[Any], None]:
    """Increments the version of each written operand of a bundle in 0.3 us; inference tensors have no version."""
    import torch

    # torch's ops call this private function; the public one first checks whether its argument is a single tensor.
    count = getattr(torch._C, "_increment_version", torch.autograd.graph.increment_version)
    written = getter(tuple(name for name in fields if name in operands and operands[name].written))
    return lambda args: count(written(args))
