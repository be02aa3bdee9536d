"""Times our candidates and installed peers on the problems of a workload: round-robin, with a cold L2.

`measure` returns a plain record (JSON); `table` and `picture` show it. A contender with a wrong output is not timed; its entry
reports the error.
"""

from __future__ import annotations

from opfacade.bench.measure import Options, measure
from opfacade.bench.picture import picture
from opfacade.bench.table import table

__all__ = ["Options", "measure", "picture", "table"]
