"""Calls over several ranks: `Group`, created from a process group of torch.distributed.

docs/distributed.md describes its use and the failure of a rank. This package starts no processes and opens no connections."""

from __future__ import annotations

from opfacade.distributed.group import Group
from opfacade.distributed.statistics import Counted, Statistics

__all__ = ["Counted", "Group", "Statistics"]
