"""Minimal work of a problem: the bytes that any kernel must move, and the floating-point operations."""

from __future__ import annotations

from typing import Any

from opfacade.core.descriptor import Descriptor
from opfacade.testing.harness import Amount, harness_of
from opfacade.tools.workload import Lengths, Work, lengths_of


def amount(descriptor: Descriptor[Any], lengths: Lengths | None = None) -> Amount:
    """Minimal work of the problem for any kernel. A paged cache counts only with the pages of its requests."""
    return harness_of(descriptor).amount(descriptor, lengths or lengths_of(Work(descriptor)))
