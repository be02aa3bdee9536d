"""Merging states, as the tools ask for it."""

from __future__ import annotations

from typing import Any

from opfacade.testing import oracle
from opfacade.testing.bounds import Bounded
from opfacade.testing.harness import Amount, Harness, HasLengths


class MergeHarness(Harness):
    def expected(self, descriptor: Any, args: Any, c: dict[str, float]) -> list[Bounded]:
        return oracle.merge(descriptor, args)

    def amount(self, descriptor: Any, lengths: HasLengths) -> Amount:
        moved = super().amount(descriptor, lengths).bytes
        return Amount(moved, 3.0 * moved / 2)

    def label(self, descriptor: Any, lengths: HasLengths) -> str:
        return f"{descriptor.op} s{descriptor.num_states} r{descriptor.total_num_rows} {descriptor.dtype}"


HARNESSES: dict[str, Harness] = {"merge_states": MergeHarness()}
