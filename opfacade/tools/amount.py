"""Minimal work of a problem: bytes that any kernel moves, and its floating-point operations."""

from __future__ import annotations

from typing import Any

from opfacade.core.descriptor import Descriptor
from opfacade.testing.harness import Amount, harness_of
from opfacade.tools.workload import Lengths, Work, lengths_of


def amount(descriptor: Descriptor[Any], lengths: Lengths | None = None) -> Amount:
    """Minimal work of the problem for any kernel; a paged cache counts only the requests' pages."""
    return harness_of(descriptor).amount(descriptor, lengths or lengths_of(Work(descriptor)))
