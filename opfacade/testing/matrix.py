"""A small problem for every kind of SKU, used by sanitizers, mutation tests, fingerprints and `verify`."""

from __future__ import annotations

from typing import Any

from opfacade.core.descriptor import Descriptor
from opfacade.testing.harness import harness_for, harness_of
from opfacade.testing.problems import ops


def matrix() -> dict[str, Descriptor[Any]]:
    """{name: descriptor}: the cases of all ops."""
    return {name: descriptor for op in ops() for name, descriptor in harness_for(op).cases(op).items()}


def attention() -> dict[str, Descriptor[Any]]:
    """Cases with exact checks."""
    return {name: descriptor for name, descriptor in matrix().items() if harness_of(descriptor).checks}
