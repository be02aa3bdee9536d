"""Harness of norms."""

from __future__ import annotations

from opfacade.testing.families._folds import FoldHarness
from opfacade.testing.harness import Harness


class NormHarness(FoldHarness):
    unit = "total_num_rows"


HARNESSES: dict[str, Harness] = {"norm": NormHarness()}
