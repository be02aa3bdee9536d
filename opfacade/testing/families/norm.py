"""Harness of norms."""

from __future__ import annotations

import random
from typing import Any

from opfacade.select.registry import examples
from opfacade.testing.batches import changed
from opfacade.testing.families._folds import FoldHarness, least_rows
from opfacade.testing.harness import Harness


class NormHarness(FoldHarness):
    unit = "total_num_rows"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        example: Any = rng.choice([example for example in examples() if example.op == op])
        return changed(example, total_num_rows=rng.randint(least_rows(example), max(1, min(300, tokens))))


HARNESSES: dict[str, Harness] = {"norm": NormHarness()}
