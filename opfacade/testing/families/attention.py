"""Attention over a KV cache, as the tools ask for it."""

from __future__ import annotations

import random

from opfacade.testing import oracle
from opfacade.testing.bounds import Report, compare, constants, join
from opfacade.testing.harness import Harness, Ran, Sample


class AttentionHarness(Harness):
    """Requests of rows that attend to keys."""

    def judge(self, ran: Ran, sample: Sample) -> Report:
        worst, rng = Report(0.0, 0.0, "", 0), random.Random(sample.seed)
        for bounded, got, place in oracle.attention(ran.descriptor, ran.args, constants(ran.sku), sample.rows, rng):
            worst = join(worst, compare(bounded, got, place))
        return worst


HARNESSES: dict[str, Harness] = {op: AttentionHarness() for op in ("paged_prefill", "paged_decode", "ragged_prefill")}
