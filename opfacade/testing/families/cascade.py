"""Merging states, as the tools ask for it."""

from __future__ import annotations

import random
from typing import Any

from opfacade.descriptor import Descriptor
from opfacade.plans.cascade import MergeStatesDescriptor
from opfacade.testing import oracle
from opfacade.testing.bounds import Bounded
from opfacade.testing.harness import Amount, Harness, HasLengths


class MergeHarness(Harness):
    def draw(self, op: str, rng: random.Random, tokens: int) -> Descriptor[Any]:
        return MergeStatesDescriptor(
            num_states=rng.choice((1, 2, 3, 8, 40)),
            total_num_rows=rng.choice((1, 7, 64, 333)),
            num_heads=rng.choice((1, 3, 8, 32)),
            head_dim=rng.choice((64, 65, 80, 128, 256)),
            dtype=rng.choice(("f16", "bf16", "f32")),
        )

    def small(self, op: str, rng: random.Random) -> Descriptor[Any]:
        return MergeStatesDescriptor(
            num_states=rng.randint(1, 4),
            total_num_rows=rng.randint(1, 9),
            num_heads=rng.choice((1, 1, 2)),
            head_dim=rng.choice((8, 16, 64)),
            dtype=rng.choice(("f16", "bf16", "f32")),
        )

    def cases(self, op: str) -> dict[str, Any]:
        return {
            "merge-bf16": MergeStatesDescriptor(num_states=5, total_num_rows=33, num_heads=4, head_dim=128, dtype="bf16"),
            "merge-odd": MergeStatesDescriptor(num_states=40, total_num_rows=7, num_heads=3, head_dim=65, dtype="f32"),
        }

    def expected(self, descriptor: Any, args: Any, c: dict[str, float]) -> list[Bounded]:
        return oracle.merge(descriptor, args)

    def amount(self, descriptor: Any, lengths: HasLengths) -> Amount:
        moved = super().amount(descriptor, lengths).bytes
        return Amount(moved, 3.0 * moved / 2)

    def label(self, descriptor: Any, lengths: HasLengths) -> str:
        return f"{descriptor.op} s{descriptor.num_states} r{descriptor.total_num_rows} {descriptor.dtype}"


HARNESSES: dict[str, Harness] = {"merge_states": MergeHarness()}
