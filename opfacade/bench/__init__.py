"""Benchmarks of the problems in a workload: our candidates and installed peers in turns, cold, and only right ones.

`measure` gives a plain record (JSON), `table` and `picture` show it. A wrong output is never timed: its entry says that it is.
"""

from __future__ import annotations

from opfacade.bench.measure import Options, measure
from opfacade.bench.picture import picture
from opfacade.bench.table import table

__all__ = ["Options", "measure", "picture", "table"]
