"""Calls over several ranks: `Group`, made of a process group of torch.distributed.

docs/distributed.md has how to use it, and what happens when a rank fails. Nothing here starts processes or opens connections
of its own.
"""

from __future__ import annotations

from opfacade.distributed.group import Group
from opfacade.distributed.statistics import Statistics

__all__ = ["Group", "Statistics"]
