"""Numbers of folds in columns (kernels/reduction/columns.cuh)."""

from __future__ import annotations

THREADS = 256  # per CTA
GROUPS = (1, 2, 4, 8, 16, 32)  # of threads that divide the rows of a column
CLUSTERS = (1, 2, 4, 8)  # CTAs per column
MAX_ROWS = 8  # of a thread that are loaded before the first is used
ROWS_OF_A_THREAD = 64  # at least, before more CTAs share a column


def slots(groups: int) -> int:
    """States per column that a CTA joins through shared memory: of its warps, or of its groups if these are larger."""
    return THREADS // 32 if THREADS // groups < 32 else groups


def shared_bytes(groups: int, cluster: int, state_bytes: int) -> int:
    """Shared memory of a CTA whose threads have one column each. A cluster has one more state per column: its result."""
    states = slots(groups) + (cluster > 1)
    return states * (THREADS // groups) * state_bytes if slots(groups) * cluster > 1 else 0
