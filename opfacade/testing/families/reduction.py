"""Harness of folds of a user's program."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opfacade.select.registry import examples
from opfacade.testing.batches import Batches, Campaign, DenseBatches, changed
from opfacade.testing.families._folds import FoldHarness
from opfacade.testing.families._ragged_batches import RaggedBatches
from opfacade.testing.harness import Harness

if TYPE_CHECKING:
    from opfacade.core.descriptor import Descriptor
    from opfacade.testing.subject import Subject


class ProgramHarness(FoldHarness):
    unit = "shape[0]"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        """One of the EXAMPLES with other extents of kept axes; folded axes are not empty, because some reducers need an
        element."""
        example: Any = rng.choice([example for example in examples() if example.op == op])
        top = min(40, tokens)
        return resized(example, [rng.randint(int(axis in example.fold), max(1, top)) for axis in range(len(example.shape))])

    def batches(self, subject: Subject, campaign: Campaign, rng: random.Random) -> Batches:
        def of_rows(problem: Any, count: int) -> Any:
            return resized(problem, (count, *problem.shape[1:]))

        if subject.descriptor.ragged:
            return RaggedBatches.drawn(subject, campaign, rng)
        if 0 in subject.descriptor.fold:
            raise NotImplementedError(f"{subject.descriptor.op}: its axis 0 is folded")
        return DenseBatches.drawn(subject, self.unit, campaign.needles, rng, of_rows)


def resized(descriptor: Descriptor[Any], shape: Sequence[int]) -> Any:
    """The same fold with other extents."""
    return changed(descriptor, shape=tuple(shape))


HARNESSES: dict[str, Harness] = {"fold": ProgramHarness()}
