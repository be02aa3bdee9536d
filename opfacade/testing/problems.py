"""Random descriptors over all accepted problems, for tests, verification and fuzzing."""

from __future__ import annotations

from typing import Any

from opfacade.core.descriptor import Descriptor
from opfacade.select.registry import descriptor_types
from opfacade.testing.harness import harness_for


def ops() -> tuple[str, ...]:
    """The names of all ops."""
    return tuple(descriptor_types())


def special_ops() -> tuple[str, ...]:
    """Ops with problems that a kernel may decline."""
    return tuple(op for op in ops() if harness_for(op).has_special)


def random_descriptor(op: str, seed: int, tokens: int = 6000) -> Descriptor[Any]:
    """A problem that every backend accepts. `tokens` bounds the keys of the whole batch. The seed determines the problem."""
    return harness_for(op).problem(op, seed, tokens)


def special_descriptor(op: str, seed: int, tokens: int = 6000) -> Descriptor[Any]:
    """The same with features that a kernel may decline, such as an fp8 cache or sinks; the reference accepts it."""
    return harness_for(op).special_problem(op, seed, tokens)


OPS, SPECIAL = ops(), special_ops()
