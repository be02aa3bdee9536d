"""Harness of softmax."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from opfacade.select.registry import examples
from opfacade.testing.batches import Batches, Campaign, DenseBatches, changed
from opfacade.testing.families._folds import FoldHarness
from opfacade.testing.harness import Harness

if TYPE_CHECKING:
    from opfacade.plans.softmax import SoftmaxDescriptor
    from opfacade.testing.subject import Subject


class SoftmaxHarness(FoldHarness):
    unit = "shape[0]"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        example: Any = rng.choice([example for example in examples() if example.op == op])
        top = max(1, min(300, tokens))
        return changed(
            example,
            shape=tuple(rng.randint(1, top if axis == example.along else min(top, 12)) for axis in range(len(example.shape))),
        )

    def batches(self, subject: Subject, campaign: Campaign, rng: random.Random) -> Batches:
        def of_rows(problem: SoftmaxDescriptor, count: int) -> Any:
            return changed(problem, shape=(count, *problem.shape[1:]))

        return DenseBatches.drawn(subject, self.unit, campaign.needles, rng, of_rows)


HARNESSES: dict[str, Harness] = {"softmax": SoftmaxHarness()}
