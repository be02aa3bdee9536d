"""Workers of one run share the cores: if torch has more threads than there are cores, threads spin while they
wait for others.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

VARIABLE = "OMP_NUM_THREADS"


def share(environ: MutableMapping[str, str], cores: int) -> None:
    """Threads of torch in a worker of xdist, unless the caller chose. To be called before torch is imported."""
    workers = int(environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    if workers:
        environ.setdefault(VARIABLE, str(max(1, cores // workers)))


def here() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
