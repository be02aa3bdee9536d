"""Writing to a paged KV cache, as the tools ask for it."""

from __future__ import annotations

from opfacade.testing import append_oracle
from opfacade.testing.bounds import Report
from opfacade.testing.harness import Harness, Ran, Sample


class AppendHarness(Harness):
    """New rows in their places; given the pools as they were, nothing else changed."""

    def judge(self, ran: Ran, sample: Sample) -> Report:
        return append_oracle.check(ran.descriptor, ran.args, ran.before)


HARNESSES: dict[str, Harness] = {"paged_kv_append": AppendHarness()}
