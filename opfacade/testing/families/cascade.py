"""Merging states, as the tools ask for it."""

from __future__ import annotations

from typing import Any

from opfacade.testing import oracle
from opfacade.testing.bounds import Bounded
from opfacade.testing.harness import Harness


class MergeHarness(Harness):
    def expected(self, descriptor: Any, args: Any, c: dict[str, float]) -> list[Bounded]:
        return oracle.merge(descriptor, args)


HARNESSES: dict[str, Harness] = {"merge_states": MergeHarness()}
