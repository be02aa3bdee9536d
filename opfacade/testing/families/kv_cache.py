"""Writing to a paged KV cache, as the tools ask for it."""

from __future__ import annotations

from typing import Any

from opfacade.sku import ITEMSIZE
from opfacade.testing import append_oracle
from opfacade.testing.bounds import Report
from opfacade.testing.families._requests import RequestsHarness
from opfacade.testing.harness import Amount, Harness, HasLengths, Ran, Sample


class AppendHarness(RequestsHarness):
    """New rows in their places; given the pools as they were, nothing else changed."""

    rows, rows_are_keys = "append_indptr", True

    def judge(self, ran: Ran, sample: Sample) -> Report:
        return append_oracle.check(ran.descriptor, ran.args, ran.before)

    def amount(self, descriptor: Any, lengths: HasLengths) -> Amount:
        cache = descriptor.paged_kv
        moved = ITEMSIZE[descriptor.row_dtype] + ITEMSIZE[cache.dtype]
        return Amount(2.0 * descriptor.total_num_rows * cache.num_kv_heads * cache.head_dim * moved, 0.0)


HARNESSES: dict[str, Harness] = {"paged_kv_append": AppendHarness()}
