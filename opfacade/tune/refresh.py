"""Makes selection read the measurements again."""

from __future__ import annotations

from opfacade.plan import forget_selections
from opfacade.select.measurements import table


def refresh() -> None:
    """The next selection that needs measurements reads them again."""
    table.cache_clear()
    forget_selections()
