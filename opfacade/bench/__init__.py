"""Benchmarks of the problems in a workload: our candidates and installed peers round-robin, cold, correct ones only.

`measure` gives a plain record (JSON), `table` and `picture` show it. A wrong output is never timed; its entry reports it.
"""

from __future__ import annotations

from opfacade.bench.measure import Options, measure
from opfacade.bench.picture import picture
from opfacade.bench.table import table

__all__ = ["Options", "measure", "picture", "table"]
