"""Harness of quantisation and back."""

from __future__ import annotations

import random
from typing import Any

from opfacade.select.registry import examples
from opfacade.testing.batches import changed
from opfacade.testing.families._folds import FoldHarness
from opfacade.testing.harness import Harness


class QuantizeHarness(FoldHarness):
    unit = "total_num_rows"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        example: Any = rng.choice([example for example in examples() if example.op == op])
        return changed(example, total_num_rows=rng.randint(1, max(1, min(300, tokens))))


HARNESSES: dict[str, Harness] = {name: QuantizeHarness() for name in ("quantize", "dequantize")}
