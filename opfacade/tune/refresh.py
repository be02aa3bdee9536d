"""Forgets the measurements that selection has read."""

from __future__ import annotations

from opfacade.plan import forget_selections
from opfacade.select.measurements import table


def refresh() -> None:
    """Read the measurements again at the next selection that needs them."""
    table.cache_clear()
    forget_selections()
